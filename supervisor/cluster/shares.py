"""Which of a cluster's suspended jobs may resume: puts together what `supervisor.decide.capacity` decides from."""

from collections.abc import Callable, Collection, Mapping, Sequence

from supervisor.cluster.rooms import Rooms
from supervisor.cluster.view import ClusterView
from supervisor.decide.capacity import Applicant, Promise, share
from supervisor.decide.grant import Grant, waits
from supervisor.decide.policy import Policy
from supervisor.domain.capacity import Ask
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.domain.placement import Placement

Asks = Callable[[JobName], Ask | None]
"""What a job's pods ask for; None where that is not known, and then the job gets nothing."""

Placements = Callable[[JobName], Mapping[Host, Placement] | None]


class Shares:
    """For all jobs of a cluster."""

    def __init__(self, view: ClusterView, policy: Policy, asks: Asks, placements: Placements) -> None:
        self._view = view
        self._rooms = Rooms(view)
        self._policy = policy
        self._asks = asks
        self._placements = placements

    def granted(self, jobs: Sequence[SupervisedJob], noticed: Collection[Host]) -> Mapping[JobName, Grant]:
        """What each of those jobs may do; `noticed` are the nodes that must not be used."""
        waiting = [job for job in jobs if job.decision.phase is Phase.SUSPENDED and waits(job)]
        if not waiting:
            return {}
        applicants = [Applicant(job, ask) for job in waiting if (ask := self._asks(job.name)) is not None]
        promises = [promise for job in jobs if (promise := self._promise(job)) is not None]
        return share(applicants, promises, self._rooms.nodes(noticed), self._policy)

    def _promise(self, job: SupervisedJob) -> Promise | None:
        if job.decision.phase is not Phase.RESUMING or job.over:
            return None
        ask = self._asks(job.name)
        if ask is None:
            return None
        places = self._placements(job.name) or {}
        unbound = [host for host in job.decision.hosts if not self._bound(places.get(host))]
        launcher = None if job.spec.launcher_host is None else places.get(job.spec.launcher_host)
        return Promise(job, ask, workers=len(unbound), launcher=ask.launcher is not None and not self._bound(launcher))

    def _bound(self, place: Placement | None) -> bool:
        """Whether a pod has its room; one that is being deleted is an earlier run's."""
        pod = None if place is None else self._view.pod(place.pod)
        return pod is not None and bool(pod.node) and not pod.over and pod.deleted_at is None
