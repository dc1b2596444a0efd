"""Whether a running job's operator can be asked for more workers without any harm: pure, and no in case of doubt.

A ScaleOut that fails deletes the pods that it was to make, by name and in every namespace. Its names follow the highest
of the job's targets, so it takes somebody else's pods for its own where others have them.
"""

import re

from supervisor.cluster.annotations import REQUESTED
from supervisor.jobs.trainingjob.objects import JobPhase, TrainingJob, TrainingJobSpec
from supervisor.jobs.trainingjob.observe import State, spec_of

_DISCOVERY = "discover_hosts.sh"
_MOST = re.compile(r"(?<![\w-])(?:--max-np|--max-num-proc)[ =]+([^-]*)")
_SIZE = re.compile(r"\$\{?workers\b")


def growable(state: State, *, namesakes: bool) -> int:
    """How many workers can be added now to a job that was resumed with fewer than it asked for.

    `namesakes`: a job of another namespace has its name.
    """
    job, asked = state.job, state.job.spec
    if asked is None or REQUESTED not in job.annotations or job.phase is not JobPhase.RUNNING:
        return 0
    if namesakes or job.suspended or job.deleted or not _settled(state) or len(job.targets) < asked.replicas:
        return 0  # With fewer targets than it began with, somebody has scaled it in.
    requested = spec_of(job, asked).requested_workers
    return max(0, requested - len(job.targets)) if _takes(asked, requested) else 0


def _settled(state: State) -> bool:
    """All workers run, are what the operator would list, and have no number above its targets'."""
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
    number = worker.removeprefix(f"{job.metadata.name}-worker-")
    return int(number) if number.isascii() and number.isdecimal() else -1


def _takes(asked: TrainingJobSpec, requested: int) -> bool:
    """Whether the launcher's command looks for hosts as it runs, and has use for so many."""
    command = asked.launcher.command
    most = _MOST.search(command)
    if _DISCOVERY not in command or (most is not None and _SIZE.search(most[1])):
        return False
    bound = most[1].split() if most is not None else []
    return not (bound and bound[0].isdecimal() and int(bound[0]) < requested * asked.slots)
