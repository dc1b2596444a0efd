"""Assigns free hosts to jobs: one function over all jobs, so that no two jobs each take half of the same hosts."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from supervisor.decide.ranking import BY_NAME, Ranking
from supervisor.decide.size import joining_workers, most_workers, startable_workers
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Phase, SupervisedJob

_WAITS = (Phase.WAITING, Phase.SUSPENDED)


@dataclass(frozen=True, slots=True)
class Grant:
    """The hosts that a job may start on, or grow by.

    Attributes:
        hosts: The granted hosts.
        probe: No capacity is known for the hosts; the job may only try to start on them.
        held_up: No hosts are granted, because the job's pods could be scheduled on a node that will be reclaimed.
        more: How many workers the controller of a running job may add to it.
    """

    hosts: frozenset[Host] = frozenset()
    probe: bool = False
    held_up: bool = False
    more: int = 0


def grants(
    jobs: Iterable[SupervisedJob],
    available: frozenset[Host],
    noticed: Collection[Host] = (),
    ranking: Ranking = BY_NAME,
) -> Mapping[JobName, frozenset[Host]]:
    """The hosts that each job may start on, or grow by; jobs that get none are not in the result.

    `available` are the hosts whose agent is connected and whose sources all answer "no notice". Waiting jobs come
    first, in the order of their waiting time, and each gets all it needs or nothing, and no host that its size cannot
    include. Hosts that a waiting job could use are not given to a running one: a start is worth more than a growth.
    `noticed` are the hosts that must not be used: a job whose launcher is on one of them cannot start, so nothing is
    reserved for it. `ranking` chooses among more hosts than a job wants.
    """
    ordered = sorted(jobs, key=_queue_order)
    free = available.difference(*(held(job) for job in ordered))
    granted: dict[JobName, frozenset[Host]] = {}
    unmet: frozenset[Host] = frozenset()
    for job in ordered:
        if waits(job) and job.spec.launcher_host in noticed:
            continue
        wanted = free & usable(job)
        if waits(job):
            allocate = ranking.best(wanted, startable_workers(len(wanted), job.spec))
            # Only free hosts: a waiting job may list thousands of hosts that do not exist at present.
            unmet |= frozenset() if allocate else wanted
        else:
            wanted -= unmet
            allocate = ranking.best(wanted, joining_workers(_own(job, noticed), len(wanted), job.spec))
        if allocate:
            granted[job.name] = allocate
            free -= allocate
    return granted


def held(job: SupervisedJob) -> frozenset[Host]:
    """The hosts that no other job may take; a finished job holds them until its command has ended."""
    if job.over and not job.observed.running:
        return frozenset()
    return job.decision.hosts


def usable(job: SupervisedJob) -> frozenset[Host]:
    """The hosts that a job could use if they were free; none if it needs no more."""
    return job.observed.hosts if waits(job) or _room(job) else frozenset()


def waits(job: SupervisedJob) -> bool:
    """Whether the job could start now: it is waiting, has no running processes and nobody holds it back."""
    return job.decision.phase in _WAITS and not (job.observed.running or job.held_back or job.over)


def _queue_order(job: SupervisedJob) -> tuple[bool, float, str]:
    return (not waits(job), job.decision.waiting_since or 0.0, job.name)


def _room(job: SupervisedJob) -> int:
    """How many more hosts a running job may take; excluded hosts do not count against its maximum."""
    if job.decision.phase is not Phase.RUNNING or job.held_back or job.over:
        return 0
    return max(0, most_workers(job.spec) - len(job.decision.hosts - job.decision.exclusions))


def _own(job: SupervisedJob, noticed: Collection[Host]) -> int:
    """How many hosts a job has that can be used, also those that it leaves out for its size."""
    return len(job.decision.hosts - job.decision.exclusions.intersection(noticed))
