"""What a job waits for and what becomes of it if nothing else happens, in sentences for people. Pure.

It says what `plan` will do and decides nothing: like reasons, no sentence holds a number that time alone changes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from supervisor.decide.waiting import run_is_possible
from supervisor.domain.capability import Capability
from supervisor.domain.job import Decision, Phase, SupervisedJob


@dataclass(frozen=True, slots=True)
class Prospect:
    """What comes next, as a sentence without its capital and its full stop.

    `at` is when, in Unix seconds; None where that depends on something else.
    """

    what: str
    at: float | None = None


def prospects(job: SupervisedJob) -> tuple[Prospect, ...]:
    """In the order in which they matter; none for a job that is over."""
    if job.over:
        return ()
    return tuple(_BY_PHASE.get(job.decision.phase, _nothing)(job))


def _nothing(_job: SupervisedJob) -> Iterator[Prospect]:
    return iter(())


def _waiting(job: SupervisedJob) -> Iterator[Prospect]:
    decision, spec = job.decision, job.spec
    if job.observed.ending:
        yield _ending()
        return
    if run_is_possible(decision, decision, job.observed):
        yield Prospect(f"run {max(job.observed.run, decision.run)} has to end first; its launcher was told")
    elif job.observed.launcher_lost_since is not None:
        yield Prospect("it is suspended and resumed soon, unless its operator starts another launcher")
    elif spec.can(Capability.STARTS_RUNS) and decision.phase is Phase.WAITING:
        yield Prospect("its operator starts the first run")
    else:
        yield _capacity(job)
    if decision.not_before is not None:
        yield Prospect("it may try again", decision.not_before)
    if spec.max_wait_seconds and decision.waiting_since is not None:
        end = decision.waiting_since + spec.max_wait_seconds
        yield Prospect("it times out and is not started again, unless it has started by then", end)


def _capacity(job: SupervisedJob) -> Prospect:
    if job.decision.capacity_since is not None:
        return Prospect("there is capacity; it starts once that has lasted a moment")
    least, verb = job.spec.start_workers, "starts" if job.decision.run == 0 else "resumes"
    if job.spec.can(Capability.MAKES_HOSTS):
        return Prospect(f"it {verb} when nodes without a notice have room for at least {least} of its workers")
    free = "are connected without a notice, and not another job's"
    return Prospect(f"it {verb} when at least {least} of its hosts {free}")


def _live(job: SupervisedJob) -> Iterator[Prospect]:
    decision, observed = job.decision, job.observed
    if decision.window_until is not None:
        yield Prospect("the hosts of this group are left out, all in one change", decision.window_until)
    elif decision.exclusions and observed.applied < decision.excluded_at:
        yield Prospect("its launcher has to confirm that it leaves them out")
    elif decision.exclusions:
        yield Prospect("hosts that are left out come back when they will not be reclaimed after all")
    if decision.below_min_since is not None:
        yield Prospect(f"it is stopped soon, unless {job.spec.min_workers} hosts are there again")
    yield from _growth(decision)


def _growth(decision: Decision) -> Iterator[Prospect]:
    growth = decision.growth
    if growth is not None and growth.workers:
        yield Prospect(f"the growth to {growth.workers} workers is given up, unless they have come", growth.until)
    elif growth is not None:
        yield Prospect("it may grow again", growth.until)
    elif decision.capacity_since is not None:
        yield Prospect("there is room for more of its workers; they join once that has lasted a while")


def _stopping(job: SupervisedJob) -> Iterator[Prospect]:
    answer, stop = job.observed.acknowledgement, job.decision.stop
    told = "everybody was told to stop" if stop is not None and stop.everyone else "rank 0 was told to stop"
    if answer is not None and stop is not None and (answer.run, answer.generation) == (stop.run, stop.generation):
        yield Prospect("rank 0 has answered, and the job is suspended now")
    else:
        yield Prospect(f"{told} and to save a checkpoint; the job is suspended as soon as rank 0 has")
    if job.observed.ending:
        yield _ending()
    else:
        yield Prospect("it resumes from its checkpoint, as another run, when there is capacity")


def _ending() -> Prospect:
    return Prospect("its launcher ends the job, which is not started again")


def _resuming(job: SupervisedJob) -> Iterator[Prospect]:
    run, until = job.decision.run, job.decision.resume_until
    yield Prospect(f"the resume is given up and tried again, unless run {run} has started by then", until)


_BY_PHASE: Mapping[Phase, Callable[[SupervisedJob], Iterator[Prospect]]] = {
    Phase.WAITING: _waiting,
    Phase.SUSPENDED: _waiting,
    Phase.RUNNING: _live,
    Phase.SHRINKING: _live,
    Phase.STOPPING: _stopping,
    Phase.RESUMING: _resuming,
}
