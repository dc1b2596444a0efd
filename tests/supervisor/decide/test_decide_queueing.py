"""A queue holds a job back, or takes its run away: the job saves, is Queued, and nothing is done to it."""

from dataclasses import replace

import pytest

from supervisor.decide.directives import JobDirectives
from supervisor.decide.explanation import prospects
from supervisor.decide.plan import plan
from supervisor.domain.ids import Host
from supervisor.domain.job import Capability, Phase, RequestKind, SupervisedJob, UserRequest
from supervisor.domain.order import ProcessDirectiveKind, SuspendRun, Worker
from tests.supervisor.decide.decide_builders import (
    POLICY,
    T0,
    answered,
    decide,
    observing,
    running_job,
    seeing,
    spec,
    suspended_job,
    waiting_job,
)

HELD = "The job waits in the queue gpus of Kueue."
_OPERATED = replace(spec(), capabilities=frozenset({Capability.MAKES_HOSTS, Capability.STARTS_RUNS}))


@pytest.mark.parametrize("job", [waiting_job(_OPERATED), suspended_job(_OPERATED)])
def test_a_job_that_its_queue_holds_is_queued(job: SupervisedJob) -> None:
    """It takes no hosts, no time limit runs, and nothing is done to it, however often it is planned."""
    job, planned = decide(observing(job, queue=HELD), seeing())
    assert (job.decision.phase, job.decision.reason) == (Phase.QUEUED, HELD)
    assert (planned.actions, planned.wake_at, job.decision.hosts) == ((), None, frozenset())
    assert plan(job, seeing(), T0 + 10, POLICY).decision == job.decision
    assert [each.what for each in prospects(job)] == ["its queue starts it"]


def test_a_queued_job_is_its_controllers_once_the_queue_admits_it() -> None:
    """The run that the controller starts is taken over, as the first one is."""
    queued = decide(observing(waiting_job(_OPERATED), queue=HELD), seeing()).job
    admitted = decide(observing(queued, queue=""), seeing(), 5).job
    assert (admitted.decision.phase, admitted.decision.waiting_since) == (Phase.WAITING, T0 + 5)
    started = decide(observing(admitted, running=True, run=1, instance="launcher-1"), seeing(), 6).job
    assert (started.decision.phase, started.decision.run) == (Phase.RUNNING, 1)


def test_a_run_that_its_queue_takes_away_is_saved_and_not_suspended() -> None:
    """To suspend it would take it out of its queue."""
    evicted = "Kueue evicts the job: Preempted."
    stopping = decide(observing(running_job(), queue=evicted), seeing()).job
    assert (stopping.decision.phase, stopping.decision.reason) == (Phase.STOPPING, evicted)
    saved, planned = decide(answered(stopping), seeing(), 1)
    assert (saved.decision.phase, planned.actions) == (Phase.QUEUED, ())


def test_a_run_that_its_queue_has_ended_is_queued() -> None:
    """Its processes are told to stop, as they have the grace of their pods to save."""
    lost = observing(running_job(_OPERATED), queue=HELD, running=False)
    job, planned = decide(lost, seeing())
    assert (job.decision.phase, job.decision.reason, planned.actions) == (Phase.QUEUED, HELD, ())
    rank_zero = Worker("p0", job.id, 1, Host("n1"), 0)
    assert JobDirectives.of(job, {}, POLICY).directive(rank_zero).kind is ProcessDirectiveKind.STOP


def test_a_person_can_suspend_a_queued_job() -> None:
    """It leaves its queue, by the same action that suspends a job that runs."""
    queued = decide(observing(waiting_job(_OPERATED), queue=HELD), seeing()).job
    request = UserRequest(kind=RequestKind.SUSPEND, by="ann", at=T0)
    job, planned = decide(observing(queued, request=request), seeing(), 1)
    assert job.decision.phase is Phase.SUSPENDED
    assert [type(action) for action in planned.actions] == [SuspendRun]
