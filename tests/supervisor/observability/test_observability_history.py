"""The history of each job is bounded, and its stored facts tell of the time before."""

from dataclasses import replace

import pytest

from supervisor.domain.ids import Host
from supervisor.domain.job import Result, SupervisedJob
from supervisor.domain.notice import OPERATOR, NoticeState
from supervisor.observability.history import MAX_ENTRIES, HistoryEntry, JobHistory, entries_of, stored
from supervisor.observability.journal import JobChanged, JobForgotten, NoticeChanged
from tests.supervisor.decide.decide_builders import (
    T0,
    answered,
    decide,
    notice,
    noticed,
    observing,
    running_job,
    seeing,
    spec,
    suspended_job,
)


def decided(job: SupervisedJob, number: int) -> SupervisedJob:
    return replace(job, decision=replace(job.decision, reason=f"Because of {number}."))


def test_a_stop_is_told_in_order_with_its_reasons() -> None:
    history, job = JobHistory(T0), running_job(spec(4))
    facts = seeing(noticed(*(notice(number, left=60.0) for number in (1, 2, 3))))
    stopping = decide(job, facts, 2.0).job
    saved = answered(stopping, step=41)
    suspended = decide(saved, facts, 3.0).job
    ended = observing(suspended, running=False, exit_code=-15)
    for at, (before, after) in enumerate([(job, stopping), (stopping, saved), (saved, suspended), (suspended, ended)]):
        history.on_change(JobChanged(before, after, T0 + at))
    assert [entry.what for entry in history.of(job.name)] == ["Run ended", "Suspended", "Checkpoint", "Stopping"]
    assert history.of(job.name)[0].text == "Run 1 ended, as it was stopped."
    assert "step 41" in history.of(job.name)[2].text
    assert history.of(job.name)[3].text == stopping.decision.reason


def test_a_new_run_is_told() -> None:
    history, job = JobHistory(T0), suspended_job()
    history.on_change(JobChanged(job, observing(job, run=2, running=True), T0))
    assert [entry.what for entry in history.of(job.name)] == ["Run began"]


def test_only_the_last_entries_are_kept_and_none_of_a_job_that_is_forgotten() -> None:
    history, job = JobHistory(T0), running_job()
    for number in range(MAX_ENTRIES + 5):
        after = decided(job, number)
        history.on_change(JobChanged(job, after, T0 + number))
        job = after
    assert len(history.of(job.name)) == MAX_ENTRIES
    assert history.of(job.name)[0].text == f"Because of {MAX_ENTRIES + 4}."
    history.on_change(JobChanged(job, observing(job, revision=99), T0))
    assert len(history.of(job.name)) == MAX_ENTRIES
    assert history.of(job.name)[0].text == f"Because of {MAX_ENTRIES + 4}."
    history.on_change(JobForgotten(job, T0))
    assert history.of(job.name) == ()


def test_the_stored_job_tells_what_it_can() -> None:
    job = suspended_job(since=T0 + 9)
    assert [(entry.what, entry.at) for entry in stored(job)] == [("Registered", T0 + 9), ("Waits since", T0 + 9)]


def test_every_episode_of_a_notice_is_told_with_its_end() -> None:
    """The store keeps the latest episode alone."""
    first = replace(notice(1), source=OPERATOR, message="ann")
    ended = replace(first, state=NoticeState.WITHDRAWN, ended_at=T0 + 5)
    again = replace(first, episode=2, first_seen=T0 + 8)
    moved = replace(again, deadline=T0 + 99)
    changes = [(None, first), (first, ended), (ended, again), (again, moved)]
    told = [
        entry
        for at, (before, after) in enumerate(changes)
        for entry in entries_of(NoticeChanged(before, after, T0 + 4 * at + 2))
    ]
    assert [(entry.at - T0, entry.subject, entry.what, entry.source) for entry in told] == [
        (0, "node/n1", "noticed", OPERATOR),
        (5, "node/n1", "withdrawn", OPERATOR),
        (8, "node/n1", "noticed", OPERATOR),
    ]
    assert told[0].text.startswith("Node n1 is drained by ann.")
    assert told[1].text == "Node n1 is not drained any more."


def test_a_decision_concerns_the_notices_on_hosts_of_the_job_alone() -> None:
    """Also on a host that the decision has given up. Stand-alone, the hosts not to be used include those of others."""
    before = running_job(workers=3)
    after = decided(before, 1)
    after = replace(after, decision=replace(after.decision, hosts=after.decision.hosts - {Host("n3")}))
    [entry] = entries_of(JobChanged(before, after, T0), lambda _job: noticed(notice(2), notice(3), notice(9)))
    assert entry.concerns == ("node/n2", "node/n3")


def test_the_end_of_a_job_that_was_not_over_is_told() -> None:
    job = running_job()
    [gone] = entries_of(JobForgotten(job, T0))
    assert (gone.subject, gone.what) == (f"job/{job.name}", "Gone")
    over = replace(job, observed=replace(job.observed, result=Result.SUCCEEDED))
    assert list(entries_of(JobForgotten(over, T0))) == []


def test_entries_from_before_come_first_and_count() -> None:
    """Those of the record, when a supervisor begins to lead; it may have told something since."""
    history, job = JobHistory(T0), running_job()
    history.on_change(JobChanged(job, decided(job, 1), T0 + 1))
    earlier = [HistoryEntry(at=T0 - 9, subject=f"job/{job.name}", what="Stopping", text="Before.")]
    history.seed([*earlier, HistoryEntry(at=T0 - 8, subject="node/n1", what="noticed", text="It goes.")], T0 - 99)
    assert [entry.text for entry in history.of(job.name)] == ["Because of 1.", "Before."]
    assert history.since == T0 - 99


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, "Run 1 ended with code 0."),
        (7, "Run 1 ended with code 7."),
        (-15, "Run 1 was ended by SIGTERM."),
        (None, "Run 1 ended."),
    ],
)
def test_the_end_of_a_run_is_told_in_words(code: int | None, said: str) -> None:
    history, job = JobHistory(T0), running_job()
    history.on_change(JobChanged(job, observing(job, running=False, exit_code=code), T0))
    assert history.of(job.name)[0].text == said
