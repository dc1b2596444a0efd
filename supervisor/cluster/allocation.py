"""Collects the inputs of `supervisor.decide.capacity`, which decides which jobs of a cluster may resume or grow."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from servicekit.bulkhead import Bulkhead
from supervisor.cluster.free_capacity import FreeCapacity
from supervisor.cluster.view import ClusterView
from supervisor.decide.capacity import GrowthCandidate, PendingJob, Reservation, RunningJobs, allocate
from supervisor.decide.grant import Grant, waits
from supervisor.decide.policy import Policy
from supervisor.domain.capacity import Placement, ResourceRequest
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Phase, SupervisedJob

T = TypeVar("T")


class Jobs(Protocol):
    """The jobs of the cluster."""

    def resource_request(self, name: JobName) -> ResourceRequest | None:
        """The resource request of a job; None if it is unknown, and then the job gets nothing."""

    def placements(self, name: JobName) -> Mapping[Host, Placement]:
        """The placements of a job's hosts."""

    def growable(self, name: JobName) -> int:
        """How many workers the controller of a running job could add now without harm."""


class Allocation:
    """Grants capacity to the jobs of a cluster."""

    def __init__(self, view: ClusterView, policy: Policy, jobs: Jobs, bulkhead: Bulkhead) -> None:
        self._bulkhead = bulkhead
        self._view = view
        self._free_capacity = FreeCapacity(view)
        self._policy = policy
        self._jobs = jobs

    def granted(
        self, jobs: Sequence[SupervisedJob], noticed: Collection[Host], avoided: Collection[Host] = ()
    ) -> Mapping[JobName, Grant]:
        """The grants of these jobs; `noticed` nodes must not be used, and nothing starts on `avoided` ones."""
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
        """What is so of each job; a job of which that raises gets nothing."""
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
        placements = self._jobs.placements(job.name)
        return (
            None if request is None else GrowthCandidate(job=job, request=request, more=more, nodes=_nodes(placements))
        )

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
        """Whether a pod is bound to a node; one that is being deleted belongs to an earlier run."""
        pod = None if placement is None else self._view.pod(placement.pod)
        return pod is not None and bool(pod.node) and not pod.over and pod.deleted_at is None


def _nodes(placements: Mapping[Host, Placement]) -> frozenset[Host]:
    return frozenset(placement.node for placement in placements.values() if placement.node)
