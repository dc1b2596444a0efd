"""The history of each job is bounded, and its stored facts tell of the time before."""

from dataclasses import replace

from supervisor.domain.job import SupervisedJob
from supervisor.observability.history import MAX_ENTRIES, JobHistory, stored
from supervisor.observability.journal import JobChanged, JobForgotten
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
    history, job = JobHistory(), running_job(spec(4))
    facts = seeing(noticed(*(notice(number, left=60.0) for number in (1, 2, 3))))
    stopping = decide(job, facts, 2.0).job
    saved = answered(stopping, step=41)
    suspended = decide(saved, facts, 3.0).job
    ended = observing(suspended, running=False, exit_code=-15)
    for at, (before, after) in enumerate([(job, stopping), (stopping, saved), (saved, suspended), (suspended, ended)]):
        history.on_change(JobChanged(before, after, T0 + at))
    assert [entry.what for entry in history.of(job.name)] == ["Run ended", "Suspended", "Checkpoint", "Stopping"]
    assert history.of(job.name)[0].text == "Run 1 ended with code -15."
    assert "step 41" in history.of(job.name)[2].text
    assert history.of(job.name)[3].text == stopping.decision.reason


def test_a_new_run_is_told() -> None:
    history, job = JobHistory(), suspended_job()
    history.on_change(JobChanged(job, observing(job, run=2, running=True), T0))
    assert [entry.what for entry in history.of(job.name)] == ["Run began"]


def test_only_the_last_entries_are_kept_and_none_of_a_job_that_is_forgotten() -> None:
    history, job = JobHistory(), running_job()
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
