"""Whether a running job's operator can be asked for more workers without harm. Pure; in case of doubt, no.

A failed ScaleOut deletes the pods that it should have made, by name and in every namespace. Its names follow the
highest of the job's targets, so it could delete pods of another job with these names.
"""

import re

from servicekit.bounds import whole
from supervisor.cluster.annotations import REQUESTED
from supervisor.jobs.trainingjob.objects import JobPhase, TrainingJob, TrainingJobSpec
from supervisor.jobs.trainingjob.observe import State, spec_of

_DISCOVERY = "discover_hosts.sh"
_MOST = re.compile(r"(?<![\w-])(?:--max-np|--max-num-proc)[ =]+([^-]*)")
_LARGEST = 10**18
_SIZE = re.compile(r"\$\{?workers\b")


def growable(state: State, *, namesakes: bool) -> int:
    """How many workers can be added now to a job that was resumed with fewer than it asked for.

    `namesakes`: a job in another namespace has the same name.
    """
    job, asked = state.job, state.job.spec
    if asked is None or REQUESTED not in job.annotations or job.phase is not JobPhase.RUNNING:
        return 0
    if namesakes or job.suspended or job.deleted or not _settled(state) or len(job.targets) < asked.replicas:
        return 0  # With fewer targets than replicas, a user has scaled it in.
    requested = spec_of(job, asked).requested_workers
    return max(0, requested - len(job.targets)) if _takes(asked, requested) else 0


def _settled(state: State) -> bool:
    """Whether all workers run, are in the operator's list, and have no number above its targets'."""
    workers = list(state.workers)
    names = {pod.key.name for pod in workers}
    highest = max((_number(state.job, name) for name in state.job.targets), default=-1)
    return (
        bool(workers)
        and all(pod.running for pod in workers)
        and names == state.job.current
        and all(_number(state.job, name) <= highest for name in names)
    )


def _number(job: TrainingJob, worker: str) -> int:
    number = whole(worker.removeprefix(f"{job.metadata.name}-worker-"), _LARGEST)
    return -1 if number is None else number


def _takes(asked: TrainingJobSpec, requested: int) -> bool:
    """Whether the launcher's command discovers hosts while it runs, and can use that many."""
    command = asked.launcher.command
    most = _MOST.search(command)
    if _DISCOVERY not in command or (most is not None and _SIZE.search(most[1])):
        return False
    written = most[1].split() if most is not None else []
    if not written or not written[0].isdecimal():
        return True
    # A number that is too long to be read is too large to be a bound.
    bound = whole(written[0], _LARGEST)
    return bound is None or bound >= requested * asked.slots
