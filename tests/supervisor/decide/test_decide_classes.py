"""When notices of each class matter: sudden ones at once, scheduled ones shortly before their deadline, hints never."""

import math
from dataclasses import replace

import pytest

from supervisor.decide.notices import Presence, apply_report, end_if_due, ends_at, replaced, silence_grace
from supervisor.decide.urgency import (
    NodeIdentities,
    NoticesByUrgency,
    avoided_at,
    by_urgency,
    checkpoint_at,
    deadline_of,
    noticed_hosts,
)
from supervisor.domain.ids import Host, Source
from supervisor.domain.job import Phase
from supervisor.domain.notice import NODE_MAINTENANCE, Announcement, NoticeClass, NoticeState, ReclaimNotice
from tests.supervisor.decide.decide_builders import (
    POLICY,
    T0,
    decide,
    notice,
    noticed,
    report,
    running_job,
    seeing,
    spec,
)

DAY = 86400.0
HORIZON = POLICY.scheduled_horizon_seconds
HINT = replace(notice(1, left=None), notice_class=NoticeClass.HINT)
MAINTENANCE = replace(notice(1, left=3 * DAY), notice_class=NoticeClass.SCHEDULED)
DUE = T0 + 3 * DAY - HORIZON
TIMELESS = replace(MAINTENANCE, deadline=None)


def _at(now: float, *notices: ReclaimNotice) -> NoticesByUrgency:
    return by_urgency(notices, now, POLICY)


def test_a_sudden_notice_is_acted_on_at_once() -> None:
    assert _at(T0, notice(1)) == NoticesByUrgency(acted_on=(notice(1),))


def test_a_replica_whose_clock_is_behind_acts_on_a_sudden_notice() -> None:
    assert _at(T0 - 30, notice(1)).acted_on == (notice(1),)


def test_a_scheduled_notice_is_ahead_until_its_horizon() -> None:
    assert _at(DUE - 1, MAINTENANCE).ahead == (MAINTENANCE,)
    assert _at(DUE - 1, MAINTENANCE).acted_on == ()


def test_a_scheduled_notice_that_is_due_is_like_a_sudden_one_of_that_moment() -> None:
    """So that a group is collected from then on, and latencies do not count the days before."""
    assert _at(DUE, MAINTENANCE) == NoticesByUrgency(acted_on=(replace(MAINTENANCE, first_seen=DUE),))


def test_a_scheduled_notice_that_comes_late_counts_from_its_receipt() -> None:
    late = replace(notice(1, left=60), notice_class=NoticeClass.SCHEDULED)
    assert _at(T0, late) == NoticesByUrgency(acted_on=(late,))


@pytest.mark.parametrize("timeless", [HINT, TIMELESS], ids=["hint", "schedule without a time"])
def test_a_notice_without_a_time_is_never_acted_on(timeless: ReclaimNotice) -> None:
    found = _at(T0 + 1000 * DAY, timeless)
    assert (found.acted_on, found.ahead, found.changes_at) == ((), (timeless,), None)


def test_time_changes_what_is_done_about_a_scheduled_notice_three_times() -> None:
    """First nothing starts on the host, then a checkpoint is asked for, then the notice is acted on."""
    moments, now = [], T0
    while (at := _at(now, MAINTENANCE).changes_at) is not None:
        moments.append(at)
        now = at
    assert moments == [avoided_at(MAINTENANCE, POLICY), checkpoint_at(MAINTENANCE, POLICY), DUE]
    assert moments == sorted(moments)


def test_a_host_that_goes_in_days_may_take_workers() -> None:
    assert avoided_at(MAINTENANCE, POLICY) == T0 + 3 * DAY - POLICY.scheduled_avoid_seconds
    assert avoided_at(HINT, POLICY) == math.inf


def test_no_run_starts_on_a_host_that_is_acted_on() -> None:
    policy = replace(POLICY, scheduled_avoid_seconds=0.0)
    assert avoided_at(MAINTENANCE, policy) == DUE


@pytest.mark.parametrize("state", [NoticeState.WITHDRAWN, NoticeState.EXPIRED, NoticeState.GONE])
def test_a_scheduled_notice_that_ended_before_it_was_due_has_no_effect(state: NoticeState) -> None:
    ended = replace(MAINTENANCE, state=state, ended_at=T0 + 60)
    assert _at(T0 + 4 * DAY, ended) == NoticesByUrgency()


def test_a_host_whose_scheduled_notice_came_true_must_not_be_used() -> None:
    gone = replace(MAINTENANCE, state=NoticeState.GONE, ended_at=T0 + 3 * DAY + 5)
    assert noticed_hosts(_at(T0 + 4 * DAY, gone).acted_on, NodeIdentities(), POLICY).keys() == {Host("n1")}


@pytest.mark.parametrize("presence", [Presence.SILENT, Presence.GONE])
def test_a_hint_never_shows_that_its_subject_was_reclaimed(presence: Presence) -> None:
    ended = end_if_due(HINT, presence, T0 + DAY, POLICY)
    assert ended.state is NoticeState.EXPIRED
    assert replaced(HINT, "another", T0 + 9).state is NoticeState.EXPIRED


def test_a_hint_stands_as_long_as_its_subject_is_there() -> None:
    assert ends_at(HINT, Presence.PRESENT, POLICY) == math.inf
    assert silence_grace(HINT, POLICY) > silence_grace(notice(1), POLICY)


def test_a_hint_has_no_deadline_whatever_its_source_says() -> None:
    for left in (None, 60.0, -900.0):
        known = apply_report(None, replace(report(left=left), notice_class=NoticeClass.HINT), T0, POLICY)
        assert known is not None
        assert (known.state, known.deadline) == (NoticeState.ACTIVE, None)


def test_a_hint_that_becomes_a_sudden_notice_counts_from_then() -> None:
    """Otherwise its assumed lead would be over before it began."""
    known = apply_report(None, replace(report(left=None), notice_class=NoticeClass.HINT), T0, POLICY)
    known = apply_report(known, report(revision=2, left=None), T0 + DAY, POLICY)
    assert known is not None
    assert (known.episode, known.notice_class, known.first_seen) == (1, NoticeClass.SUDDEN, T0 + DAY)
    assert deadline_of(known, POLICY) == T0 + DAY + POLICY.default_lead_seconds


def test_a_report_of_the_same_class_keeps_when_it_was_first_seen() -> None:
    scheduled = replace(report(left=DAY), notice_class=NoticeClass.SCHEDULED, cancellable=True)
    known = apply_report(apply_report(None, scheduled, T0, POLICY), replace(scheduled, revision=2), T0 + 9, POLICY)
    assert known is not None
    assert (known.first_seen, known.notice_class, known.cancellable) == (T0, NoticeClass.SCHEDULED, True)


def test_a_withdrawal_before_the_horizon_leaves_nothing_behind() -> None:
    scheduled = replace(report(left=DAY), notice_class=NoticeClass.SCHEDULED)
    known = apply_report(None, scheduled, T0, POLICY)
    known = apply_report(known, replace(scheduled, revision=2, announcement=Announcement.WITHDRAWN), T0 + 9, POLICY)
    assert known is not None
    assert _at(T0 + 2 * DAY, known) == NoticesByUrgency()


@pytest.mark.parametrize(("source", "lead"), [("aws", 120), ("gcp", 30), ("azure", 30), ("tencent", 120), ("x", 300)])
def test_each_cloud_has_its_usual_lead(source: str, lead: float) -> None:
    assert deadline_of(replace(notice(1, left=None), source=Source(source)), POLICY) == T0 + lead


def test_a_clear_answer_of_a_node_denies_no_schedule_of_the_cluster() -> None:
    """The metadata service of a spot machine says nothing about its maintenance."""
    due = replace(notice(1, left=60), source=NODE_MAINTENANCE, notice_class=NoticeClass.SCHEDULED)
    clear = NodeIdentities(clear={Host("n1")})
    assert noticed_hosts(_at(T0, due).acted_on, clear, POLICY) == noticed(due)


# Checkpoints


def test_a_hint_asks_for_one_checkpoint_and_changes_nothing_else() -> None:
    job = running_job()
    step = decide(job, seeing(ahead=[HINT]))
    decision = step.job.decision
    assert decision.checkpoint is not None
    assert (decision.checkpoint.run, decision.checkpoint.generation) == (1, decision.generation)
    assert replace(decision, checkpoint=None, reason="", generation=0) == replace(job.decision, reason="", generation=0)
    assert decision.reason == "n1 may be reclaimed later, according to metadata: saving a checkpoint and continuing."
    assert decide(step.job, seeing(ahead=[HINT]), at=DAY).job == step.job


def test_a_group_of_hints_asks_for_one_checkpoint() -> None:
    job = decide(running_job(), seeing(ahead=[HINT])).job
    later = replace(notice(2, left=None, seen=T0 + 30), notice_class=NoticeClass.HINT)
    assert decide(job, seeing(ahead=[HINT, later]), at=30).job == job
    next_one = replace(notice(2, left=None, seen=T0 + 90), notice_class=NoticeClass.HINT)
    assert decide(job, seeing(ahead=[HINT, next_one]), at=90).job.decision.checkpoint is not None
    assert decide(job, seeing(ahead=[HINT, next_one]), at=90).job != job


def test_a_checkpoint_is_asked_for_a_horizon_before_a_scheduled_notice_is_acted_on() -> None:
    job, facts = running_job(), seeing(ahead=[MAINTENANCE])
    early = decide(job, facts, at=3 * DAY - 2 * HORIZON - 1)
    assert early.job == job
    assert early.plan.wake_at == T0 + 3 * DAY - 2 * HORIZON
    told = decide(job, facts, at=3 * DAY - 2 * HORIZON)
    assert told.job.decision.checkpoint is not None
    assert told.plan.wake_at == DUE


@pytest.mark.parametrize("phase", [Phase.WAITING, Phase.SUSPENDED, Phase.RESUMING])
def test_a_job_without_a_run_is_asked_for_no_checkpoint(phase: Phase) -> None:
    job = running_job()
    observed = replace(job.observed, running=False)
    job = replace(job, observed=observed, decision=replace(job.decision, phase=phase, run=2))
    assert decide(job, seeing(ahead=[HINT])).job.decision.checkpoint is None


def test_a_hint_on_the_launchers_host_counts() -> None:
    job = running_job(replace(spec(), launcher_host=Host("n9")))
    assert decide(job, seeing(ahead=[replace(HINT, subject=replace(HINT.subject, name="n9"))])).job != job
    assert decide(job, seeing(ahead=[replace(HINT, subject=replace(HINT.subject, name="n8"))])).job == job
