"""Shrinking and growing: one change of the host list for a group."""

from dataclasses import replace

import pytest

from supervisor.decide.directives import order_for
from supervisor.decide.policy import Policy
from supervisor.domain.job import Phase
from supervisor.domain.notice import NoticeState
from supervisor.domain.order import SetHostList
from tests.supervisor.decide.decide_builders import (
    POLICY,
    T0,
    decide,
    first,
    hosts,
    notice,
    noticed,
    obeyed,
    observing,
    running_job,
    seeing,
    spec,
)


def test_a_group_is_one_change() -> None:
    """Notices within the window are taken off the list together, a window after the first of them."""
    job = running_job()
    group = [notice(4), notice(5, seen=T0 + 0.6), notice(6, seen=T0 + 1.2)]
    changes = []
    for count, at in ((1, 0.0), (2, 0.6), (3, 1.2), (3, 1.24), (3, 1.25), (3, 1.3)):
        before = job.decision.exclusions
        job, planned = decide(job, seeing(noticed(*group[:count])), at)
        changes += [(at, job.decision.exclusions)] if job.decision.exclusions != before else []
        if at < 1.25:
            assert planned.wake_at == T0 + 1.25
    assert changes == [(1.25, hosts(4, 5, 6))]
    assert job.decision.phase is Phase.SHRINKING
    assert job.decision.reason == "n4, n5, n6 will be reclaimed, says metadata; continuing with 3 hosts (minimum 3)."


def test_a_group_is_waited_for_by_one_decision() -> None:
    """What else comes in within the window changes nothing until it is over: of twenty, each would cost a write."""
    group = [notice(4), notice(5, seen=T0 + 0.6), notice(6, seen=T0 + 1.2)]
    waits = decide(running_job(), seeing(noticed(group[0]))).job
    for count, at in ((2, 0.6), (3, 1.2)):
        assert decide(waits, seeing(noticed(*group[:count])), at).job.decision == waits.decision
    assert decide(waits, seeing(noticed(*group)), 1.25).job.decision.exclusions == hosts(4, 5, 6)


def test_a_group_that_a_restart_cuts_in_two_is_one_change() -> None:
    """The rest of it is heard a moment after the supervisor is back, so its window begins anew."""
    facts = replace(seeing(noticed(notice(4))), since=T0 + 3)
    job = decide(running_job(), facts, 3).job
    assert job.decision.exclusions == hosts()
    complete = replace(facts, notices=noticed(notice(4), notice(5, seen=T0 + 3.4)))
    assert decide(job, complete, 4.24).job.decision.exclusions == hosts()
    assert decide(job, complete, 4.25).job.decision.exclusions == hosts(4, 5)


def test_a_group_that_waited_for_the_store_is_one_change() -> None:
    """Its notices become durable one after the other, after the first of its hosts has gone."""
    waited = [notice(4, left=2), notice(5), notice(6)]
    job = decide(running_job(), replace(seeing(noticed(*waited[:1])), since=T0 + 30), 30).job
    complete = replace(seeing(noticed(*waited)), since=T0 + 30.4)
    assert decide(job, complete, 31.64).job.decision.exclusions == hosts()
    assert decide(job, complete, 31.65).job.decision.exclusions == hosts(4, 5, 6)


def test_a_second_group_is_a_second_change() -> None:
    job = obeyed(decide(running_job(), seeing(noticed(notice(6))), 2).job)
    later = seeing(noticed(notice(6), notice(5, seen=T0 + 3)))
    assert decide(job, later, 4).job.decision.exclusions == hosts(6)
    assert decide(job, later, 4.25).job.decision.exclusions == hosts(5, 6)


@pytest.mark.parametrize(("left", "at"), [(6.0, 1.0), (5.5, 0.5), (5.0, 0.0), (1.0, 0.0), (-3.0, 0.0)])
def test_a_deadline_shortens_the_window(left: float, at: float) -> None:
    facts = seeing(noticed(notice(6, left=left)))
    if at:
        assert decide(running_job(), facts, at - 0.01).job.decision.exclusions == hosts()
    assert decide(running_job(), facts, at).job.decision.exclusions == hosts(6)


def test_the_most_urgent_of_a_group_decides() -> None:
    """A second notice with an earlier deadline closes a window that is open already."""
    job = decide(running_job(), seeing(noticed(notice(6)))).job
    urgent = noticed(notice(6), notice(5, left=5.5, seen=T0 + 0.1))
    job, planned = decide(job, seeing(urgent), 0.1)
    assert planned.wake_at == T0 + 0.6
    assert decide(job, seeing(urgent), 0.6).job.decision.exclusions == hosts(5, 6)


def test_a_notice_known_for_long_needs_no_window() -> None:
    """After a restart of the supervisor an old notice is acted on at once."""
    assert decide(running_job(), seeing(noticed(notice(6))), 60).job.decision.exclusions == hosts(6)


def test_a_withdrawal_within_the_window_changes_no_list() -> None:
    """A group that came to nothing was never on the list, and the reason no longer speaks of it."""
    job = decide(running_job(), seeing(noticed(notice(6)))).job
    generation = job.decision.generation
    job, planned = decide(job, seeing(), 1)
    assert (job.decision.exclusions, job.decision.window_until, planned.wake_at) == (hosts(), None, None)
    assert (job.decision.reason, job.decision.generation) == ("Run 1 is running on 6 hosts.", generation + 1)


def test_shrinking_lasts_until_the_launcher_has_the_list() -> None:
    """The change is in place when the launcher has applied the order that made it."""
    job, planned = decide(running_job(), seeing(noticed(notice(6))), 2)
    assert planned.actions == (SetHostList(first(6), hosts(6)),)
    assert decide(job, seeing(noticed(notice(6))), 3).job.decision.phase is Phase.SHRINKING
    job, planned = decide(obeyed(job), seeing(noticed(notice(6))), 3)
    assert (job.decision.phase, job.decision.reason) == (Phase.RUNNING, "Run 1 is running on 5 hosts.")
    assert order_for(job).workers == 5


@pytest.mark.parametrize("applied", [False, True])
def test_a_withdrawn_notice_takes_its_exclusion_back(applied: bool) -> None:  # noqa: FBT001  # pytest names it.
    """The host goes back on the list, whether the launcher had left it out yet or not."""
    both = noticed(notice(5), notice(6))
    job = decide(running_job(), seeing(both), 2).job
    job = decide(obeyed(job) if applied else job, seeing(noticed(notice(5))), 3).job
    assert job.decision.exclusions == hosts(5)
    assert job.decision.reason == "n6 has no notice any more; now 5 hosts."
    job = decide(obeyed(job), seeing(), 4).job
    job = decide(obeyed(job), seeing(), 4).job
    assert (job.decision.phase, job.decision.hosts, job.decision.exclusions) == (Phase.RUNNING, first(6), hosts())


def test_a_host_above_the_maximum_is_not_taken_back() -> None:
    """Where a replacement has joined meanwhile, the withdrawn host is let go: the job may not outgrow its maximum."""
    job = obeyed(decide(running_job(), seeing(noticed(notice(6))), 2).job)
    job = observing(job, hosts=first(7))
    facts = seeing(noticed(notice(6)), hosts(7))
    job = obeyed(decide(decide(job, facts, 3).job, facts, 5).job)
    assert (job.decision.hosts, job.decision.exclusions) == (first(7), hosts(6))
    job = decide(job, seeing(), 6).job
    assert (job.decision.hosts, job.decision.exclusions) == (hosts(1, 2, 3, 4, 5, 7), hosts())


def test_a_host_that_has_left_the_list_leaves_the_job() -> None:
    """When the operator has removed a reclaimed host nothing of it is kept."""
    job = obeyed(decide(running_job(), seeing(noticed(notice(6))), 2).job)
    job = decide(observing(job, hosts=first(5)), seeing(noticed(notice(6, state=NoticeState.GONE))), 400).job
    assert (job.decision.hosts, job.decision.exclusions) == (first(5), hosts())


def test_growth_collects_what_comes_together() -> None:
    job = observing(running_job(spec(3, 8), 6), hosts=first(8))
    job, planned = decide(job, seeing({}, hosts(7)))
    assert planned.wake_at == T0 + POLICY.resume_delay_seconds
    job = decide(job, seeing({}, hosts(7, 8)), 1).job
    assert job.decision.hosts == first(6)
    job, planned = decide(job, seeing({}, hosts(7, 8)), 2)
    assert (job.decision.hosts, job.decision.reason) == (first(8), "n7, n8 joined; now 8 hosts.")
    assert planned.actions == (SetHostList(first(8), hosts()),)


@pytest.mark.parametrize("delay", [0.1, 0.3, 0.7, 1.1, 3.3])
@pytest.mark.parametrize("at", [0.0, 0.1, 0.2, 7.7])
def test_growth_is_due_exactly_when_announced(delay: float, at: float) -> None:
    """Who waits until `wake_at` and decides then finds the growth due, whatever the rounding."""
    policy, facts = Policy(resume_delay_seconds=delay), seeing({}, hosts(7))
    job, planned = decide(observing(running_job(spec(3, 8), 6), hosts=first(7)), facts, at, policy)
    assert planned.wake_at is not None
    assert decide(job, facts, planned.wake_at - T0, policy).job.decision.hosts == first(7)


def test_growth_is_decided_once() -> None:
    """A grant that is still in the view when its hosts have joined starts nothing new."""
    job = observing(running_job(spec(3, 8), 6), hosts=first(8))
    facts = seeing({}, hosts(7, 8))
    job = decide(decide(job, facts).job, facts, 2).job
    again, planned = decide(job, facts, 2)
    assert (again.decision, planned.wake_at) == (job.decision, None)


def test_capacity_that_goes_again_is_forgotten() -> None:
    job = observing(running_job(spec(3, 8), 6), hosts=first(8))
    job = decide(job, seeing({}, hosts(7))).job
    job = decide(job, seeing(), 1).job
    job = decide(job, seeing({}, hosts(7)), 2).job
    assert decide(job, seeing({}, hosts(7)), 3.9).job.decision.hosts == first(6)
    assert decide(job, seeing({}, hosts(7)), 4).job.decision.hosts == first(7)


def test_a_noticed_host_that_is_not_the_jobs_changes_nothing() -> None:
    """Hosts that wait on the operator's list are not used, so their notices do not matter."""
    job = observing(running_job(spec(3, 8), 6), hosts=first(8))
    assert decide(job, seeing(noticed(notice(7)))).job.decision == job.decision


def test_a_run_below_its_requested_size_is_no_reason_to_stop() -> None:
    job = running_job(replace(spec(3, 6), requested_workers=6), 3)
    assert decide(job, seeing(), 1000).job.decision == job.decision
