"""Grants the free capacity of a cluster's nodes to jobs that may resume or grow.

`supervisor.decide.capacity` decides; this module collects its inputs.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from servicekit.bulkhead import Bulkhead
from supervisor.cluster.objects import Node, Pod
from supervisor.cluster.view import ClusterView
from supervisor.decide.capacity import GrowthCandidate, NodesByNotice, PendingJob, Reservation, RunningJobs, allocate
from supervisor.decide.grant import Grant, waits
from supervisor.decide.policy import Policy
from supervisor.domain.capacity import Effect, NodeCapacity, Placement, ResourceRequest, Taint
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Phase, SupervisedJob

_CORDON = Taint(key="node.kubernetes.io/unschedulable", effect=Effect.NO_SCHEDULE)
"""The taint that stands for a cordon: pods that tolerate everything are still bound to the node."""

T = TypeVar("T")


class FreeCapacity:
    """Keeps the free capacity of each node up to date as pods and nodes change.

    A pod uses capacity until it is gone.
    """

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._free_capacity: dict[str, NodeCapacity] = {}
        self._open: set[str] = set()
        self._stale = {node.metadata.name for node in view.nodes.values()}
        view.pods_changed.append(self._changed)
        view.nodes_changed.append(self._changed)

    def nodes(self, noticed: Collection[Host], avoided: Collection[Host] = ()) -> NodesByNotice:
        """Returns the ready nodes that are neither cordoned nor removed: those without a notice, and those with one.

        No job waits for `avoided` nodes, on which nothing is to start: they go later, so a pod there may still run.
        """
        for name in self._stale:
            self._free_capacity.pop(name, None)
            self._open.discard(name)
            node = self._view.node(name)
            if node is None:
                continue
            taken = self._view.taken(name)
            self._free_capacity[name] = NodeCapacity(
                name=name,
                labels=node.labels,
                taints=(*node.taints, _CORDON) if node.cordoned else node.taints,
                free={resource: amount - taken.get(resource, 0) for resource, amount in node.allocatable.items()},
            )
            # Its room is known if the requests of all pods that are bound to it are.
            if node.open and all(not pod.unread or pod.over for pod in self._view.bound(name).values()):
                self._open.add(name)
        self._stale.clear()
        closed = {*noticed, *avoided}
        return NodesByNotice(
            usable=[room for name, room in self._free_capacity.items() if name in self._open and name not in closed],
            noticed=[room for name in noticed if (room := self._free_capacity.get(name)) is not None],
        )

    def _changed(self, before: Pod | Node | None, after: Pod | Node | None) -> None:
        """Marks the nodes whose free capacity a change of a pod or of a node may have changed."""
        for changed in (before, after):
            if isinstance(changed, Node):
                self._stale.add(changed.metadata.name)
            elif changed is not None and changed.node:
                self._stale.add(changed.node)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCapacitySource:
    """Tells what the jobs of the cluster request and use.

    Attributes:
        resource_request: Returns the resource request of a job; None if it is unknown, and then the job gets nothing.
        placements: Returns the placements of a job's hosts.
        growable: Returns how many workers the controller of a running job could add now without harm.
    """

    resource_request: Callable[[JobName], ResourceRequest | None]
    placements: Callable[[JobName], Mapping[Host, Placement]]
    growable: Callable[[JobName], int]


class Allocation:
    """Grants capacity to the jobs of a cluster."""

    def __init__(self, view: ClusterView, policy: Policy, jobs: JobCapacitySource, bulkhead: Bulkhead) -> None:
        self._bulkhead = bulkhead
        self._view = view
        self._free_capacity = FreeCapacity(view)
        self._policy = policy
        self._jobs = jobs

    def granted(
        self, jobs: Sequence[SupervisedJob], noticed: Collection[Host], avoided: Collection[Host] = ()
    ) -> Mapping[JobName, Grant]:
        """Returns the grants of these jobs; `noticed` nodes must not be used, and nothing starts on `avoided` ones."""
        waiting = [job for job in jobs if waits(job)]
        suspended = [job for job in waiting if job.decision.phase is Phase.SUSPENDED]
        growth_candidates = self._of_each(jobs, self._growth_candidate)
        if not suspended and not growth_candidates:
            return {}
        pending_jobs = self._of_each(suspended, self._pending)
        starting = [job for job in waiting if job.decision.phase is Phase.WAITING] if growth_candidates else []
        running = RunningJobs(
            growth_candidates=growth_candidates,
            starting=self._of_each(starting, lambda job: self._jobs.resource_request(job.name)),
        )
        reservations = self._of_each(jobs, self._reservation)
        return allocate(pending_jobs, reservations, self._free_capacity.nodes(noticed, avoided), self._policy, running)

    def _of_each(self, jobs: Iterable[SupervisedJob], of: Callable[[SupervisedJob], T | None]) -> list[T]:
        """Applies `of` to each job, and leaves out None. A job for which `of` raises gets nothing."""
        found = list[T]()
        for job in jobs:
            with self._bulkhead.guard("grant", job.name):
                if (value := of(job)) is not None:
                    found.append(value)
        return found

    def _pending(self, job: SupervisedJob) -> PendingJob | None:
        request = self._jobs.resource_request(job.name)
        return None if request is None else PendingJob(job, request)

    def _growth_candidate(self, job: SupervisedJob) -> GrowthCandidate | None:
        if not self._policy.growth_delay_seconds or job.decision.phase is not Phase.RUNNING or job.over:
            return None
        # A job never grows beyond what it is known to use, whatever its annotations say by now.
        room = job.spec.max_workers - len(job.observed.hosts)
        if job.decision.growing or (more := min(self._jobs.growable(job.name), room)) < 1:
            return None
        request = self._jobs.resource_request(job.name)
        if request is None:
            return None
        placements = self._jobs.placements(job.name).values()
        nodes = frozenset(placement.node for placement in placements if placement.node)
        return GrowthCandidate(job=job, request=request, more=more, nodes=nodes)

    def _reservation(self, job: SupervisedJob) -> Reservation | None:
        if job.over or not (job.decision.phase is Phase.RESUMING or job.decision.growing):
            return None
        request = self._jobs.resource_request(job.name)
        if request is None:
            return None
        placements = self._jobs.placements(job.name)
        launcher = None if job.spec.launcher_host is None else placements.get(job.spec.launcher_host)
        if growth := job.decision.growing:
            bound = sum(
                self._bound(placement) for host, placement in placements.items() if host != job.spec.launcher_host
            )
            return Reservation(job, request, workers=max(0, growth.workers - bound), launcher=False)
        unbound = sum(not self._bound(placements.get(host)) for host in job.decision.hosts)
        # Which of them request something else is not known: it is the workers that more jobs compete for.
        workers = min(unbound, max(0, len(job.decision.hosts) - request.fixed))
        return Reservation(
            job,
            request,
            workers=workers,
            launcher=request.launcher is not None and not self._bound(launcher),
            others=unbound - workers,
        )

    def _bound(self, placement: Placement | None) -> bool:
        """Returns whether a pod is bound to a node; one that is being deleted belongs to an earlier run."""
        pod = None if placement is None else self._view.pod(placement.pod)
        return pod is not None and bool(pod.node) and not pod.over and pod.deleted_at is None
