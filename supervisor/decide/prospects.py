"""Sentences for people about what happens to a job next. Pure.

They predict what `plan` will do and decide nothing. Like reasons, they contain no number that changes with time alone.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from supervisor.decide.size import least_to_start, least_workers
from supervisor.decide.stopping import answers, failure
from supervisor.decide.waiting import run_is_possible
from supervisor.domain.capability import Capability
from supervisor.domain.job import Decision, Phase, RequestKind, SupervisedJob, UserRequest


@dataclass(frozen=True, slots=True)
class Prospect:
    """What comes next, as a sentence without capital and full stop.

    `at` is the instant in Unix seconds; None if it depends on something else.
    """

    what: str
    at: float | None = None


def prospects(job: SupervisedJob) -> tuple[Prospect, ...]:
    """The prospects of a job, the most important first; none if it has ended."""
    if job.over:
        return ()
    return tuple(_BY_PHASE.get(job.decision.phase, _nothing)(job))


def _nothing(_job: SupervisedJob) -> Iterator[Prospect]:
    return iter(())


def _queued(_job: SupervisedJob) -> Iterator[Prospect]:
    yield Prospect("its queue starts it")


def _waiting(job: SupervisedJob) -> Iterator[Prospect]:
    decision, spec = job.decision, job.spec
    if job.observed.ending:
        yield _ending()
        return
    if run_is_possible(decision, decision, job.observed):
        yield Prospect(f"run {max(job.observed.run, decision.run)} has to end first; its launcher was told")
    elif job.observed.request is not None:
        yield _requested(job.observed.request)
        return
    elif job.observed.launcher_lost_since is not None:
        yield Prospect("it is suspended and resumed soon unless its operator starts another launcher")
    elif spec.can(Capability.STARTS_RUNS) and decision.phase is Phase.WAITING:
        yield Prospect("its operator starts the first run")
    else:
        yield _capacity(job)
    if decision.not_before is not None:
        yield Prospect("it may try again", decision.not_before)
    if spec.max_wait_seconds and decision.waiting_since is not None:
        end = decision.waiting_since + spec.max_wait_seconds
        yield Prospect("it times out and is not started again unless it has started by then", end)


def _capacity(job: SupervisedJob) -> Prospect:
    if job.decision.capacity_since is not None:
        return Prospect("there is capacity; it starts if that lasts a moment")
    least, verb = least_to_start(job.spec), "starts" if job.decision.run == 0 else "resumes"
    if job.spec.can(Capability.MAKES_HOSTS):
        return Prospect(f"it {verb} when nodes without a notice have room for at least {least} of its workers")
    free = "are connected without a notice and not used by another job"
    return Prospect(f"it {verb} when at least {least} of its hosts {free}")


def _live(job: SupervisedJob) -> Iterator[Prospect]:
    decision, observed = job.decision, job.observed
    if decision.window_until is not None:
        yield Prospect("all hosts of this group are excluded in one change", decision.window_until)
    elif decision.exclusions and observed.applied < decision.excluded_at:
        yield Prospect("its launcher has to confirm the exclusion")
    elif decision.exclusions:
        yield Prospect("excluded hosts return if their notices are withdrawn")
    if decision.below_min_since is not None:
        yield Prospect(f"it stops soon unless at least {least_workers(job.spec)} hosts are back")
    yield from _growth(decision)


def _growth(decision: Decision) -> Iterator[Prospect]:
    growth = decision.growth
    if growth is not None and growth.workers:
        yield Prospect(f"the growth to {growth.workers} workers is given up unless they have joined", growth.until)
    elif growth is not None:
        yield Prospect("it may grow again", growth.until)
    elif decision.capacity_since is not None:
        yield Prospect("there is room for more workers; they join if that lasts a while")


def _stopping(job: SupervisedJob) -> Iterator[Prospect]:
    answer, stop = job.observed.acknowledgement, job.decision.stop
    told = "all processes were told to stop" if stop is not None and stop.everyone else "rank 0 was told to stop"
    failed = None if stop is None else failure(answer, stop)
    if failed is not None:
        yield Prospect(f"rank {failed.rank} could not save ({failed.error}); it is suspended unless a rank still saves")
    elif stop is not None and answers(answer, stop):
        yield Prospect("rank 0 has answered; the job is being suspended")
    else:
        yield Prospect(f"{told} and to save a checkpoint; the job is suspended as soon as rank 0 has answered")
    if job.observed.ending:
        yield _ending()
    elif job.observed.request is not None:
        yield _requested(job.observed.request)
    else:
        yield Prospect("it resumes from its checkpoint as a new run when there is capacity")


def _ending() -> Prospect:
    return Prospect("its launcher ends the job, which is not started again")


def _requested(request: UserRequest) -> Prospect:
    if request.kind is RequestKind.STOP:
        return Prospect("it is ended for good and not started again")
    return Prospect("it stays suspended until somebody resumes it")


def _resuming(job: SupervisedJob) -> Iterator[Prospect]:
    run, until = job.decision.run, job.decision.resume_until
    yield Prospect(f"the resume is given up and tried again unless run {run} has started by then", until)


_BY_PHASE: Mapping[Phase, Callable[[SupervisedJob], Iterator[Prospect]]] = {
    Phase.QUEUED: _queued,
    Phase.WAITING: _waiting,
    Phase.SUSPENDED: _waiting,
    Phase.RUNNING: _live,
    Phase.SHRINKING: _live,
    Phase.STOPPING: _stopping,
    Phase.RESUMING: _resuming,
}
