"""Hosts that a run can do without train until shortly before they go, if it is known how long leaving them takes."""

from dataclasses import replace
from typing import Any

import pytest

from supervisor.decide.policy import Policy
from supervisor.decide.ranks import Ranks, RankState
from supervisor.decide.situation import JobFacts, Member, Members
from supervisor.domain.agreement import Purpose
from supervisor.domain.ids import Host
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.domain.notice import NoticeClass, ReclaimNotice
from tests.supervisor.decide.decide_builders import (
    T0,
    decide,
    first,
    hosts,
    notice,
    noticed,
    obeyed,
    running_job,
    seeing,
)

_STEP = 1.0
_LAST = 300.0 - 5.0 - 10 * _STEP
"""From the margin and ten steps before the deadline on, there may not be enough time."""
_EXCLUDED_AT = _LAST - _STEP


def _stepping(*notices: ReclaimNotice, step: float | None = _STEP, checkpoint: float | None = None) -> JobFacts:
    """Facts of a run whose only rank says how long its steps and checkpoints take."""
    rank = RankState(process="p", rank=0, step_seconds=step, checkpoint_seconds=checkpoint)
    return replace(seeing(noticed(*notices)), ranks=Ranks((rank,)))


def _waiting(*notices: ReclaimNotice) -> SupervisedJob:
    return decide(running_job(), _stepping(*notices)).job


def test_hosts_are_used_until_shortly_before_they_go() -> None:
    facts = _stepping(notice(6))
    job, planned = decide(running_job(), facts)
    assert (job.decision.exclusions, planned.wake_at) == (hosts(), T0 + _EXCLUDED_AT)
    assert job.decision.reason == "n6 will be reclaimed, says metadata; training on all hosts until shortly before."
    assert decide(job, facts, _EXCLUDED_AT - 0.01).job.decision == job.decision
    assert decide(job, facts, _EXCLUDED_AT).job.decision.exclusions == hosts(6)


def test_notices_that_arrive_until_then_are_one_group() -> None:
    """They cost no decision, and all hosts leave in one change, shortly before the first of them goes."""
    job = _waiting(notice(6))
    later = _stepping(notice(6), notice(5, seen=T0 + 100))
    assert decide(job, later, 100).job.decision == job.decision
    assert decide(job, later, _EXCLUDED_AT).job.decision.exclusions == hosts(5, 6)


def test_an_earlier_deadline_brings_the_exclusion_forward() -> None:
    job = _waiting(notice(6))
    earlier = _stepping(notice(6), notice(5, left=60, seen=T0 + 100))
    assert decide(job, earlier, 100).plan.wake_at == T0 + 100 + 60 - 5 - 11 * _STEP


def test_a_pod_that_is_asked_to_terminate_is_excluded_at_once() -> None:
    """A termination handler evicts it long before its node goes, and its processes receive SIGTERM."""
    evicted = replace(_stepping(notice(6)), terminating=hosts(6))
    assert decide(_waiting(notice(6)), evicted, 20).job.decision.exclusions == hosts(6)


def test_a_withdrawal_until_then_changes_no_list() -> None:
    job = decide(_waiting(notice(6)), _stepping(), 200).job
    assert (job.decision.exclusions, job.decision.window_until) == (hosts(), None)
    assert job.decision.reason == "Run 1 is running on 6 hosts."


def test_too_few_hosts_stop_the_job_although_others_are_still_used() -> None:
    facts = _stepping(notice(6), notice(5), notice(4), notice(3))
    assert decide(_waiting(notice(6)), facts, 10).job.decision.phase is Phase.STOPPING


@pytest.mark.parametrize("step", [0.9, 1.09])
def test_a_step_that_takes_a_little_longer_or_less_costs_no_decision(step: float) -> None:
    job = _waiting(notice(6))
    assert decide(job, _stepping(notice(6), step=step), 10).job.decision == job.decision


def test_much_longer_steps_bring_the_exclusion_forward() -> None:
    step = decide(_waiting(notice(6)), _stepping(notice(6), step=3.0), 10)
    assert step.plan.wake_at == T0 + 300 - 5 - 11 * 3


def test_a_supervisor_that_has_just_started_keeps_what_was_decided() -> None:
    """The processes have not said again how long their steps take."""
    job = _waiting(notice(6))
    facts = replace(seeing(noticed(notice(6))), since=T0 + 10)
    assert decide(job, facts, 12).job.decision == job.decision


@pytest.mark.parametrize(
    ("facts", "policy"),
    [
        (_stepping(notice(6), step=None), Policy()),
        (_stepping(notice(6), notice(5, left=None)), Policy()),
        (_stepping(notice(6, left=12)), Policy()),
        (replace(_stepping(notice(6)), terminating=hosts(6)), Policy()),
        (_stepping(notice(6)), Policy(just_in_time=False)),
    ],
    ids=["steps of unknown length", "a deadline that nobody names", "no time left", "SIGTERM", "as configured"],
)
def test_otherwise_hosts_are_excluded_as_soon_as_the_group_is_complete(facts: JobFacts, policy: Policy) -> None:
    job, planned = decide(running_job(), facts, policy=policy)
    assert planned.wake_at == T0 + 1.25
    assert decide(job, facts, 1.25, policy).job.decision.exclusions == hosts(*(int(host[1:]) for host in facts.notices))


_WITHOUT_A_SAVE = 300.0 - 5.0 - 4.0 - 5 * _STEP
"""Two rounds of messages and four steps before the margin; a step more keeps the end stable."""


def _in_rounds(facts: JobFacts, **rank: Any) -> JobFacts:
    """The same job as one of elastic agents, in which each rank is `rank`."""
    members = {host: Member(member=host, since=T0, processes=1, address="10.0.0.1") for host in first(6)}
    states = tuple(replace(state, **rank) for state in facts.ranks.states)
    return replace(facts, ranks=Ranks(states), members=Members(members))


@pytest.mark.parametrize(("checkpoint", "at"), [(None, 1.25), (20.0, _WITHOUT_A_SAVE - 20.0)])
def test_members_of_a_rendezvous_agree_and_save_before_they_leave(checkpoint: float | None, at: float) -> None:
    facts = _in_rounds(_stepping(notice(6), checkpoint=checkpoint))
    assert decide(running_job(), facts).job.decision.window_until == T0 + at


@pytest.mark.parametrize(("collective", "at"), [(False, _WITHOUT_A_SAVE), (True, 1.25)])
def test_processes_that_go_on_with_the_whole_state_save_nothing_before_others_leave(
    *, collective: bool, at: float
) -> None:
    """Nobody has ever timed a checkpoint of theirs. If each has a part of it, they may have to save it."""
    facts = _in_rounds(_stepping(notice(6)), purposes=frozenset({Purpose.REGROUP}), collective=collective)
    assert decide(running_job(), facts).job.decision.window_until == T0 + at


def test_members_are_taken_in_while_others_train_until_they_go() -> None:
    """So their processes start before the next round, which both may share. Elastic Horovod keeps them apart."""
    facts = replace(_stepping(notice(6)), granted=hosts(7))
    in_rounds = _in_rounds(facts, purposes=frozenset({Purpose.REGROUP}))
    for given, joined in ((facts, hosts()), (in_rounds, hosts(7))):
        job = running_job()
        listed = replace(job.observed, hosts=first(7))
        for seconds in (0, 10, 20):
            job = decide(replace(job, observed=listed), given, seconds).job
        assert job.decision.hosts == first(6) | joined
        assert job.decision.window_until is not None
    assert job.decision.reason == (
        "n6 will be reclaimed, says metadata; training on all hosts until shortly before. n7 joined; now 7 hosts."
    )
    assert decide(job, in_rounds, 21).job.decision == job.decision


def test_a_shrink_ends_while_the_next_group_is_still_used() -> None:
    """The job is not `Shrinking` for minutes."""
    job = obeyed(decide(running_job(), seeing(noticed(notice(6))), 2).job)
    assert job.decision.phase is Phase.SHRINKING
    following = decide(job, _stepping(notice(6), notice(5, seen=T0 + 3)), 3).job
    assert (following.decision.phase, following.decision.exclusions) == (Phase.RUNNING, hosts(6))
    assert following.decision.window_until is not None


@pytest.mark.parametrize(("at", "requests"), [(100.0, 1), (_EXCLUDED_AT - 1.0, 0)])
def test_a_hint_asks_for_a_checkpoint_unless_hosts_are_about_to_change(at: float, requests: int) -> None:
    hint = replace(notice(1, left=None, seen=T0 + at), notice_class=NoticeClass.HINT)
    facts = replace(_stepping(notice(6)), ahead={Host("n1"): [hint]})
    decision = decide(_waiting(notice(6)), facts, at).job.decision
    assert (decision.checkpoint is not None, decision.window_until) == (bool(requests), T0 + _EXCLUDED_AT)
