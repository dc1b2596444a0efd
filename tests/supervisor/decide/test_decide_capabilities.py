"""Each capability changes only the decisions that it is about."""

from dataclasses import replace

import pytest

from supervisor.domain.ids import Host
from supervisor.domain.job import ELASTIC, Capability, Phase, SupervisedJob
from supervisor.domain.order import AddHosts, LeaveHosts, RemoveHosts, SetHostList, StopProcesses
from tests.supervisor.decide.decide_builders import (
    POLICY,
    decide,
    first,
    notice,
    noticed,
    observing,
    running_job,
    seeing,
    spec,
    waiting_job,
)

_LAUNCHER = Host("launcher")


def _running(*lacking: Capability, least: int = 2) -> SupervisedJob:
    """A job that asked for six workers and runs on four, with all capabilities but those."""
    capabilities = ELASTIC - set(lacking)
    return running_job(replace(spec(least, 6), capabilities=capabilities, launcher_host=_LAUNCHER), 4)


@pytest.mark.parametrize("grows", [True, False])
def test_a_run_is_grown_only_where_that_is_possible(*, grows: bool) -> None:
    room = replace(seeing(), more=2)
    job, _ = decide(_running(*([] if grows else [Capability.GROWS])), room)
    job, planned = decide(job, room, at=POLICY.growth_delay_seconds)
    job, planned = decide(observing(job, applied=job.decision.generation), room, at=POLICY.growth_delay_seconds)
    assert (job.decision.growing is not None, any(isinstance(each, AddHosts) for each in planned.actions)) == (
        grows,
        grows,
    )


def test_a_controller_that_makes_the_hosts_is_not_granted_others() -> None:
    job, _ = decide(_running(Capability.GROWS), seeing(granted=first(6)))
    job, _ = decide(job, seeing(granted=first(6)), at=POLICY.resume_delay_seconds)
    assert job.decision.hosts == first(4)


@pytest.mark.parametrize(
    ("lacking", "actions"),
    [
        ([], {LeaveHosts, RemoveHosts}),
        ([Capability.REPLACES_HOSTS], {LeaveHosts}),
        ([Capability.SIGNALS_PODS], {RemoveHosts}),
        ([Capability.SIGNALS_PODS, Capability.REPLACES_HOSTS], set()),
    ],
)
def test_the_last_moment_of_a_host_is_what_the_controller_can_do(
    lacking: list[Capability], actions: set[type[object]]
) -> None:
    facts = seeing(noticed(notice(4)))
    job, _ = decide(_running(*lacking), facts)
    job, _ = decide(job, facts, at=POLICY.window_seconds)
    job, planned = decide(observing(job, applied=job.decision.generation), facts, at=299)
    assert job.decision.phase is Phase.RUNNING
    assert {type(each) for each in planned.actions} - {SetHostList} == actions


def test_pods_are_signalled_only_where_that_is_possible() -> None:
    for lacking, signalled in ([], True), ([Capability.SIGNALS_PODS], False):
        job = _running(*lacking, least=4)
        job, _ = decide(job, seeing(noticed(notice(4))))
        job, planned = decide(job, seeing(noticed(notice(4))), at=299)
        assert any(isinstance(each, StopProcesses) for each in planned.actions) is signalled


def test_a_controller_that_starts_no_runs_waits_to_be_told() -> None:
    waiting = waiting_job(replace(spec(2, 6), capabilities=frozenset({Capability.MAKES_HOSTS})))
    job, _ = decide(waiting, seeing(granted=first(6)))
    job, _ = decide(job, seeing(granted=first(6)), at=POLICY.resume_delay_seconds)
    assert (job.decision.phase, job.decision.run) == (Phase.RUNNING, 1)


def test_a_run_that_cannot_leave_a_host_out_stops_although_enough_would_remain() -> None:
    """It resumes on the others at once, instead of losing steps when the host goes."""
    job = running_job(replace(spec(2, 6), capabilities=frozenset(Capability)), 4)
    job, planned = decide(job, seeing(noticed(notice(1))))
    assert (job.decision.phase, job.decision.exclusions) == (Phase.STOPPING, frozenset())
    assert job.decision.reason == "n1 will be reclaimed, says metadata; the run cannot go on without a host: stopping."
    assert not any(isinstance(each, SetHostList) and each.exclusions for each in planned.actions)
