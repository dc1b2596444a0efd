"""Which hosts each job may take: one function over all jobs, so that two never each take half of the same hosts."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Phase, SupervisedJob

_WAITS = (Phase.WAITING, Phase.SUSPENDED)


@dataclass(frozen=True, slots=True)
class Grant:
    """The hosts that a job may start on, or grow by.

    `probe`: nothing is known to be there for it, it may only try. `held_up`: nothing is granted, since a node that will
    be reclaimed could take its pods. `more` is how many workers the operator of a job that runs may add to it.
    """

    hosts: frozenset[Host] = frozenset()
    probe: bool = False
    held_up: bool = False
    more: int = 0


def grants(
    jobs: Iterable[SupervisedJob], available: frozenset[Host], noticed: Collection[Host] = ()
) -> Mapping[JobName, frozenset[Host]]:
    """The hosts each job may start on, or grow by; a job that gets none is left out.

    `available` are hosts whose agent is connected and whose every source answers "no notice". Jobs that wait come
    first, the longest waiting before all, each with all it needs or nothing. What a job that still waits could use is
    not given to one that runs: growing is worth less than starting. `noticed` are the hosts that must not be used: a
    job whose launcher is on one of them cannot start, so nothing is kept for it.
    """
    ordered = sorted(jobs, key=_turn)
    free = available.difference(*(held(job) for job in ordered))
    granted: dict[JobName, frozenset[Host]] = {}
    unmet: frozenset[Host] = frozenset()
    for job in ordered:
        if waits(job) and job.spec.launcher_host in noticed:
            continue
        wanted = free & usable(job)
        if waits(job):
            allocate = (
                _first(wanted, job.spec.requested_workers) if len(wanted) >= job.spec.min_workers else frozenset()
            )
            # No more than what is free: a job that waits may list thousands of hosts, most of them nobody's.
            unmet |= frozenset() if allocate else wanted
        else:
            allocate = _first(wanted - unmet, _room(job))
        if allocate:
            granted[job.name] = allocate
            free -= allocate
    return granted


def held(job: SupervisedJob) -> frozenset[Host]:
    """The hosts that no other job may take; a job that is over holds them until its command has ended."""
    if job.over and not job.observed.running:
        return frozenset()
    return job.decision.hosts


def usable(job: SupervisedJob) -> frozenset[Host]:
    """The hosts of which a job could take some if they were free; none where it needs no more."""
    return job.observed.hosts if waits(job) or _room(job) else frozenset()


def waits(job: SupervisedJob) -> bool:
    """Whether the job could start now: it waits, nothing of it is running, and nobody is ending it."""
    observed = job.observed
    return job.decision.phase in _WAITS and not (observed.running or observed.ending or job.over)


def _turn(job: SupervisedJob) -> tuple[bool, float, str]:
    return (not waits(job), job.decision.waiting_since or 0.0, job.name)


def _room(job: SupervisedJob) -> int:
    """How many hosts a running job may still take; excluded ones are on their way out and leave room."""
    if job.decision.phase is not Phase.RUNNING or job.observed.ending or job.over:
        return 0
    return max(0, job.spec.max_workers - len(job.decision.hosts - job.decision.exclusions))


def _first(hosts: frozenset[Host], count: int) -> frozenset[Host]:
    return frozenset(sorted(hosts)[:count])
