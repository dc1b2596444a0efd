"""Which of a cluster's jobs may resume or grow: puts together what `supervisor.decide.capacity` decides from."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from supervisor.cluster.free_capacity import FreeCapacity
from supervisor.cluster.view import ClusterView
from supervisor.decide.capacity import GrowthCandidate, PendingJob, Reservation, RunningJobs, allocate
from supervisor.decide.grant import Grant, waits
from supervisor.decide.policy import Policy
from supervisor.domain.capacity import ResourceRequest
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.domain.placement import Placement


class Jobs(Protocol):
    """What is known of a cluster's jobs."""

    def resource_request(self, name: JobName) -> ResourceRequest | None:
        """Returns what a job's pods ask for; None where that is not known, and then the job gets nothing."""

    def placements(self, name: JobName) -> Mapping[Host, Placement]:
        """Returns where a job's hosts are."""

    def growable(self, name: JobName) -> int:
        """Returns how many workers a running job's controller could add to it now without harm."""


class Allocation:
    """Which of a cluster's jobs may resume or grow."""

    def __init__(self, view: ClusterView, policy: Policy, jobs: Jobs) -> None:
        self._view = view
        self._free_capacity = FreeCapacity(view)
        self._policy = policy
        self._jobs = jobs

    def granted(self, jobs: Sequence[SupervisedJob], noticed: Collection[Host]) -> Mapping[JobName, Grant]:
        """What each of those jobs may do; `noticed` are the nodes that must not be used."""
        waiting = [job for job in jobs if waits(job)]
        suspended = [job for job in waiting if job.decision.phase is Phase.SUSPENDED]
        growth_candidates = [grower for job in jobs if (grower := self._grower(job)) is not None]
        if not suspended and not growth_candidates:
            return {}
        pending_jobs = [
            PendingJob(job, request)
            for job in suspended
            if (request := self._jobs.resource_request(job.name)) is not None
        ]
        starting = [job for job in waiting if job.decision.phase is Phase.WAITING] if growth_candidates else []
        running = RunningJobs(
            growth_candidates=growth_candidates,
            starting=[request for job in starting if (request := self._jobs.resource_request(job.name)) is not None],
        )
        reservations = [reservation for job in jobs if (reservation := self._promise(job)) is not None]
        return allocate(pending_jobs, reservations, self._free_capacity.nodes(noticed), self._policy, running)

    def _grower(self, job: SupervisedJob) -> GrowthCandidate | None:
        if not self._policy.growth_delay_seconds or job.decision.phase is not Phase.RUNNING or job.over:
            return None
        if job.decision.growing or not (more := self._jobs.growable(job.name)):
            return None
        request = self._jobs.resource_request(job.name)
        places = self._jobs.placements(job.name)
        return None if request is None else GrowthCandidate(job=job, request=request, more=more, nodes=_nodes(places))

    def _promise(self, job: SupervisedJob) -> Reservation | None:
        if job.over or not (job.decision.phase is Phase.RESUMING or job.decision.growing):
            return None
        request = self._jobs.resource_request(job.name)
        if request is None:
            return None
        places = self._jobs.placements(job.name)
        launcher = None if job.spec.launcher_host is None else places.get(job.spec.launcher_host)
        if growth := job.decision.growing:
            bound = sum(self._bound(place) for host, place in places.items() if host != job.spec.launcher_host)
            return Reservation(job, request, workers=max(0, growth.workers - bound), launcher=False)
        unbound = [host for host in job.decision.hosts if not self._bound(places.get(host))]
        return Reservation(
            job, request, workers=len(unbound), launcher=request.launcher is not None and not self._bound(launcher)
        )

    def _bound(self, place: Placement | None) -> bool:
        """Whether a pod has its room; one that is being deleted is an earlier run's."""
        pod = None if place is None else self._view.pod(place.pod)
        return pod is not None and bool(pod.node) and not pod.over and pod.deleted_at is None


def _nodes(places: Mapping[Host, Placement]) -> frozenset[Host]:
    return frozenset(place.node for place in places.values() if place.node)
