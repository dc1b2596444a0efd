"""Assigns free hosts to jobs.

One function decides for all jobs, so that no two jobs each take half of the same hosts.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from supervisor.domain.capacity import UNKNOWN_MACHINE, Machine, PriceClass
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import WAITS, OnLoss, Phase, Spec, SupervisedJob
from supervisor.domain.notice import OF_PEOPLE, NoticeClass, NoticeState, ReclaimNotice


def takes_any_size(spec: Spec) -> bool:
    """Whether the job can run with every size between minimum and maximum."""
    return spec.on_loss is OnLoss.SHRINK and spec.worker_multiple == 1


def usable_workers(count: int, spec: Spec) -> int:
    """The largest number of `count` hosts with which a run may go on; 0 if they are too few.

    The maximum of a job that shrinks is not a bound: hosts above it are not granted, and a controller that makes more
    hosts uses them.
    """
    if spec.on_loss is OnLoss.HOLD:
        return spec.requested_workers if count >= spec.requested_workers else 0
    size = count - count % spec.worker_multiple
    return size if size >= spec.min_workers else 0


def startable_workers(count: int, spec: Spec) -> int:
    """The largest number of `count` hosts on which a run starts, at most the requested one; 0 if they are too few."""
    size = usable_workers(min(count, spec.requested_workers), spec)
    return size if size >= spec.start_workers else 0


def joining_workers(workers: int, count: int, spec: Spec) -> int:
    """How many of `count` further hosts a run with `workers` takes, including hosts that it can only use together."""
    most = usable_workers(min(workers + count, spec.max_workers), spec)
    return max(0, most - workers)


def least_workers(spec: Spec, *, to_start: bool = False) -> int:
    """The fewest hosts with which a run goes on, or with `to_start` those on which it starts."""
    if spec.on_loss is OnLoss.HOLD:
        return spec.requested_workers
    least = spec.start_workers if to_start else spec.min_workers
    # The next multiple.
    return -(-least // spec.worker_multiple) * spec.worker_multiple


def most_workers(spec: Spec) -> int:
    """The most hosts that a run takes."""
    most = spec.max_workers - spec.max_workers % spec.worker_multiple
    return spec.requested_workers if spec.on_loss is OnLoss.HOLD else most


Rank = tuple[int, bool, bool, bool, float, Host]

_BY_PRICE = {PriceClass.ON_DEMAND: 0, PriceClass.UNKNOWN: 1, PriceClass.SPOT: 2}


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Ranks hosts by the facts of one moment.

    Attributes:
        machine: Returns the machine of a host, with as much of it as is known.
        ahead: The notices on each host that are not acted on yet.
        noticed: The hosts with notices that are acted on; they show which pools are being reclaimed.
        now: Unix seconds.
    """

    machine: Callable[[Host], Machine] = lambda _: UNKNOWN_MACHINE
    ahead: Mapping[str, Sequence[ReclaimNotice]] = field(default_factory=dict)
    noticed: Mapping[Host, ReclaimNotice] = field(default_factory=dict)
    now: float = 0.0

    def best(self, hosts: Collection[Host], count: int) -> frozenset[Host]:
        """Returns the best `count` hosts, or all if there are no more."""
        return frozenset(hosts) if len(hosts) <= count else frozenset(self.ordered(hosts)[:count])

    def ordered(self, hosts: Iterable[Host]) -> list[Host]:
        """Returns the hosts, the best one first."""
        return sorted(hosts, key=self._rank)

    @cached_property
    def _reclaimed_pools(self) -> frozenset[str]:
        """The names of the pools with a machine whose notice is acted on.

        A person's notice proves nothing about a pool.
        """
        # Only where there is a choice: 2,500 notices would otherwise be looked at in every pass.
        affected = {
            self.machine(host).pool_name
            for host, notice in self.noticed.items()
            if notice.state is NoticeState.ACTIVE and notice.source not in OF_PEOPLE
        }
        return frozenset(affected - {""})

    def _rank(self, host: Host) -> Rank:
        machine, ahead = self.machine(host), self.ahead.get(host, ())
        return (
            _BY_PRICE[machine.price_class],
            machine.protected_until is None or machine.protected_until <= self.now,
            any(notice.notice_class is NoticeClass.HINT for notice in ahead),
            bool(self._reclaimed_pools) and machine.pool_name in self._reclaimed_pools,
            # When the subject of a scheduled notice goes; a hint names no time.
            -min((notice.deadline for notice in ahead if notice.deadline is not None), default=math.inf),
            host,
        )


BY_NAME = Ranking()
"""The ranking by name, when nothing is known about any host."""


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
    ordered = sorted(jobs, key=lambda job: (not waits(job), job.decision.waiting_since or 0.0, job.name))
    free = available.difference(*(held(job) for job in ordered))
    granted: dict[JobName, frozenset[Host]] = {}
    unmet: frozenset[Host] = frozenset()
    for job in ordered:
        if waits(job) and job.spec.launcher_host in noticed:
            continue
        wanted = free & usable(job)
        if waits(job):
            allocated = ranking.best(wanted, startable_workers(len(wanted), job.spec))
            # Only free hosts: a waiting job may list thousands of hosts that do not exist at present.
            unmet |= frozenset() if allocated else wanted
        else:
            wanted -= unmet
            # Also those that it leaves out for its size can be used.
            own = len(job.decision.hosts - job.decision.exclusions.intersection(noticed))
            allocated = ranking.best(wanted, joining_workers(own, len(wanted), job.spec))
        if allocated:
            granted[job.name] = allocated
            free -= allocated
    return granted


def held(job: SupervisedJob) -> frozenset[Host]:
    """The hosts that no other job may take; a finished job holds them until its command has ended."""
    if job.over and not job.observed.running:
        return frozenset()
    return job.decision.hosts


def usable(job: SupervisedJob) -> frozenset[Host]:
    """The hosts that a job could use if they were free; none if it needs no further host."""
    if waits(job):
        return job.observed.hosts
    if job.decision.phase is not Phase.RUNNING or job.held_back or job.over:
        return frozenset()
    # Excluded hosts do not count against its maximum.
    has_room = len(job.decision.hosts - job.decision.exclusions) < most_workers(job.spec)
    return job.observed.hosts if has_room else frozenset()


def waits(job: SupervisedJob) -> bool:
    """Whether the job could start now: it waits for capacity here, has no running processes, and is not held back."""
    is_free = not (job.observed.running or job.held_back or job.over)
    return job.decision.phase in WAITS and is_free and job.decision.given_up_since is None
