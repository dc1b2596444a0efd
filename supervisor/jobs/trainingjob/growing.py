"""Whether a running job's operator can be asked for more workers without any harm: pure, and no in case of doubt.

A ScaleOut that fails deletes the pods that it was to make, by name and in every namespace. Its names follow the highest
of the job's targets, so it takes somebody else's pods for its own where others have them.
"""

import re

from supervisor.jobs.trainingjob.objects import REQUESTED, JobPhase, TrainingJob, TrainingJobSpec
from supervisor.jobs.trainingjob.seen import ObservedJob, spec_of

_DISCOVERY = "discover_hosts.sh"
_MOST = re.compile(r"(?<![\w-])(?:--max-np|--max-num-proc)[ =]+([^-]*)")
_SIZE = re.compile(r"\$\{?workers\b")


def growable(seen: ObservedJob, *, namesakes: bool) -> int:
    """How many workers can be added now to a job that was resumed with fewer than it asked for.

    `namesakes`: a job of another namespace has its name.
    """
    job, wish = seen.job, seen.job.wish
    if wish is None or REQUESTED not in job.annotations or job.phase is not JobPhase.RUNNING:
        return 0
    if namesakes or job.suspended or job.deleted or not _settled(seen) or len(job.targets) < wish.replicas:
        return 0  # With fewer targets than it began with, somebody has scaled it in.
    requested = spec_of(job, wish).requested_workers
    return max(0, requested - len(job.targets)) if _takes(wish, requested) else 0


def _settled(seen: ObservedJob) -> bool:
    """All workers run, are what the operator would list, and have no number above its targets'."""
    workers = list(seen.workers)
    names = {pod.key.name for pod in workers}
    highest = max((_number(seen.job, name) for name in seen.job.targets), default=-1)
    return (
        bool(workers)
        and all(pod.running for pod in workers)
        and names == seen.job.current
        and all(_number(seen.job, name) <= highest for name in names)
    )


def _number(job: TrainingJob, worker: str) -> int:
    number = worker.removeprefix(f"{job.metadata.name}-worker-")
    return int(number) if number.isascii() and number.isdecimal() else -1


def _takes(wish: TrainingJobSpec, requested: int) -> bool:
    """Whether the launcher's command looks for hosts as it runs, and has use for so many."""
    command = wish.launcher.command
    most = _MOST.search(command)
    if _DISCOVERY not in command or (most is not None and _SIZE.search(most[1])):
        return False
    bound = most[1].split() if most is not None else []
    return not (bound and bound[0].isdecimal() and int(bound[0]) < requested * wish.slots)
