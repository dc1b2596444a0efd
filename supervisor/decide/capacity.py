"""Decides which suspended jobs of a cluster may resume and which running ones may grow, and to what size."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from supervisor.decide.grant import Grant, joining_workers, least_workers, startable_workers
from supervisor.decide.packing import NODE_NAME, BinPacker, scarce
from supervisor.decide.policy import Policy
from supervisor.decide.waiting import probe_at
from supervisor.domain.capacity import LabelOperator, LabelRequirement, NodeCapacity, Pods, ResourceRequest
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import SupervisedJob

_PLAIN = "cpu"
"""Stands for the resources that every node has."""

_NUMBER = re.compile(r"(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class PendingJob:
    """A suspended job that could resume, with its resource request."""

    job: SupervisedJob
    request: ResourceRequest


@dataclass(frozen=True, slots=True)
class Reservation:
    """The capacity that is reserved for the pods of a resuming or growing job that are not bound to a node yet.

    Attributes:
        workers: The workers, without those that request something else.
        others: How many of `request.others`.
    """

    job: SupervisedJob
    request: ResourceRequest
    workers: int
    launcher: bool
    others: int = 0

    @property
    def pods(self) -> Iterator[Pods]:
        """The pods that are not bound yet."""
        yield Pods(self.request.worker, self.workers)
        left = self.others
        for each in self.request.others:
            yield Pods(each.demand, min(left, each.count))
            left -= min(left, each.count)
        if self.launcher and self.request.launcher is not None:
            yield Pods(self.request.launcher, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthCandidate:
    """A running job that could have `more` workers; `nodes` are the nodes of its present ones."""

    job: SupervisedJob
    request: ResourceRequest
    more: int
    nodes: frozenset[Host] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJobs:
    """The jobs that may grow, and the requests of jobs whose controller has made pods that do not run yet."""

    growth_candidates: Sequence[GrowthCandidate] = ()
    starting: Sequence[ResourceRequest] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesByNotice:
    """`usable` nodes have no notice. `noticed` nodes will be reclaimed; the scheduler may still bind pods to them."""

    usable: Sequence[NodeCapacity]
    noticed: Sequence[NodeCapacity] = ()


def allocate(
    pending_jobs: Collection[PendingJob],
    reservations: Collection[Reservation],
    nodes: NodesByNotice,
    policy: Policy,
    running: RunningJobs = RunningJobs(),
) -> Mapping[JobName, Grant]:
    """The grant of each job; jobs without one are not in the result.

    Jobs are served in the order of their waiting time, and each gets all it needs or nothing. Capacity that is reserved
    for a resuming or growing job is kept. A job waits, however much room there is, while one of its pods could be bound
    to a noticed node. A start is worth more than a growth: no job grows by a kind of capacity that another one waits
    for or is about to get.
    """
    usable, noticed = BinPacker(nodes.usable), BinPacker(nodes.noticed)
    for reservation in sorted(reservations, key=lambda each: each.job.name):
        for pods in reservation.pods:
            usable.give(pods.demand, pods.count)
    granted: dict[JobName, Grant] = {}
    unmet: list[PendingJob] = []
    # These jobs may still take capacity.
    pending = [
        each for each in reservations if each.job.decision.probing or each.launcher or each.workers or each.others
    ]
    busy = {name for each in pending for name in _kind(each.request)}
    for each in sorted(pending_jobs, key=lambda each: (each.job.decision.waiting_since or 0.0, each.job.name)):
        spec, demands = each.job.spec, (each.request.worker, *(pods.demand for pods in each.request.beside))
        if any(map(noticed.has_room, demands)):
            granted[each.job.name] = Grant(held_up=True)
        elif count := usable.take(
            each.request,
            min(spec.requested_workers, len(each.job.observed.hosts)),
            partial(startable_workers, spec=spec),
        ):
            granted[each.job.name] = Grant(first_hosts(each.job, count))
            busy |= _kind(each.request)
        else:
            unmet.append(each)
    wanted = {
        name for request in (*(each.request for each in pending_jobs), *running.starting) for name in _kind(request)
    }
    return {
        **granted,
        **_probes(unmet, busy, policy),
        **_growths(running.growth_candidates, busy | wanted, usable, noticed),
    }


def first_hosts(job: SupervisedJob, count: int) -> frozenset[Host]:
    """The hosts of a run of that many workers: controllers number workers from 0."""

    def in_order(host: Host) -> list[tuple[bool, int, str]]:
        """Sorts worker-2 before worker-10."""
        return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in _NUMBER.split(host)]

    return frozenset(sorted(job.observed.hosts, key=in_order)[:count])


def _probes(unmet: Iterable[PendingJob], busy: Collection[str], policy: Policy) -> Mapping[JobName, Grant]:
    """Lets at most one job at a time probe for a kind of capacity. Several would each get a part and none enough.

    None probes while another job is about to start on that kind, as its pending pods would take that job's capacity.
    """
    if not policy.probe_seconds:
        return {}
    taken = set(busy)
    offered: dict[JobName, Grant] = {}
    for each in sorted(unmet, key=lambda each: (probe_at(each.job.decision, policy), each.job.name)):
        kind, spec = _kind(each.request), each.job.spec
        # The requested and the minimum size take turns, as only a part of the capacity may appear.
        is_small = bool(each.job.decision.failed_resumes % 2)
        size = least_workers(spec, to_start=True) if is_small else spec.requested_workers
        if taken.isdisjoint(kind) and size <= len(each.job.observed.hosts):
            taken |= kind
            offered[each.job.name] = Grant(first_hosts(each.job, size), probe=True)
    return offered


def _growths(
    growth_candidates: Iterable[GrowthCandidate], wanted: Collection[str], usable: BinPacker, noticed: BinPacker
) -> Mapping[JobName, Grant]:
    """Grants running jobs as many workers as the remaining capacity allows."""
    granted: dict[JobName, Grant] = {}
    for each in sorted(growth_candidates, key=lambda each: each.job.name):
        worker = each.request.worker
        if worker.apart and each.nodes:
            # Its workers must be on different nodes, and so not on its present ones.
            other = LabelRequirement(key=NODE_NAME, operator=LabelOperator.NOT_IN, values=each.nodes)
            worker = replace(worker, affinity=tuple((*term, other) for term in worker.affinity or ((),)))
        free = _kind(each.request).isdisjoint(wanted) and not noticed.has_room(worker)
        size = partial(joining_workers, len(each.job.decision.hosts), spec=each.job.spec)
        if free and (count := usable.take(ResourceRequest(worker=worker), each.more, size)):
            granted[each.job.name] = Grant(more=count)
    return granted


def _kind(request: ResourceRequest) -> frozenset[str]:
    """The resources that jobs compete for: the scarce ones, on any nodes."""
    workers = (request.worker, *(each.demand for each in request.others))
    return frozenset().union(*map(scarce, workers)) or frozenset({_PLAIN})
