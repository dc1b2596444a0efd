"""The jobs of all kinds on a cluster: their caches, and the actions of their kinds."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from supervisor.domain.capacity import Placement, ResourceRequest
from supervisor.domain.ids import Host, JobName, kind_of
from supervisor.domain.job import SupervisedJob
from supervisor.jobs.cache import JobCache
from supervisor.jobs.kind import ClusterContext, J, JobActions, JobKind, JobReference, JobState, KindContext
from supervisor.jobs.queues.client import QueuedJobClient
from supervisor.jobs.queues.kueue.actions import KueueActions
from supervisor.jobs.queues.kueue.workloads import Workloads


@dataclass(frozen=True, slots=True)
class ConnectedKind:
    """A kind with the cache and the actions of its jobs."""

    cache: JobCache[Any]
    actions: JobActions[Any]


def connect(kind: JobKind[J], cache: JobCache[J], cluster: ClusterContext, workloads: Workloads) -> ConnectedKind:
    """Connects the actions of a kind with a cluster, and with the queue of those jobs that one manages."""
    client = QueuedJobClient(cluster.server, kind.resource, kind.decode)
    own = kind.actions(KindContext(jobs=cache, client=cache.client, cluster=cluster))
    queued = kind.actions(KindContext(jobs=cache, client=client, cluster=cluster))
    return ConnectedKind(cache, KueueActions(own, queued, workloads))


class ClusterJobs:
    """All jobs of a cluster; queries go to the kind of a job."""

    def __init__(self, kinds: Iterable[ConnectedKind]) -> None:
        self._kinds = {kind.cache.kind.name: kind for kind in kinds}
        for kind in self:
            if (dependent := kind.cache.kind.dependent) is not None:
                kind.cache.follow(self._kinds[dependent.kind].cache)

    def __iter__(self) -> Iterator[ConnectedKind]:
        return iter(self._kinds.values())

    def of(self, name: JobName) -> ConnectedKind | None:
        """The kind of a job; None if this version does not support it."""
        return self._kinds.get(kind_of(name))

    def subscribe(self, on_change: Callable[[Collection[JobName]], None]) -> None:
        """Adds a callback for changes of jobs and their pods."""
        for kind in self:
            kind.cache.subscribe(on_change)

    def touched(self, names: Collection[JobName]) -> None:
        """Tells the subscribers about changes of what queues say of these jobs."""
        for name in names:
            if (kind := self.of(name)) is not None:
                kind.cache.touched([name])

    def state(self, name: JobName) -> JobState[Any] | None:
        """The state of a job; None if there is none of that name."""
        kind = self.of(name)
        return None if kind is None else kind.cache.state(name)

    def is_released(self, job: SupervisedJob) -> bool:
        """Whether a job that was supervised is still there, and its kind does not take it up anew."""
        kind, state = self.of(job.name), self.state(job.name)
        if kind is None or state is None or state.job.metadata.uid != job.uid or state.job.deleted:
            return False
        return kind.cache.kind.observe(state, None, job.observed.registered_at) is None

    def owner_of(self, reference: JobReference) -> JobReference:
        """The job of which a controller has made that one; that one itself if it is nobody's part."""
        owners = filter(None, (kind.cache.owner_of(reference) for kind in self))
        return next(owners, reference)

    def placements(self, name: JobName) -> Mapping[Host, Placement]:
        """The placements of the job's workers and launcher; the same object until they change."""
        kind = self.of(name)
        return _NOWHERE if kind is None else kind.cache.placements(name)

    def resource_request(self, name: JobName) -> ResourceRequest | None:
        """The resource request of a run of the job; None if it is unknown."""
        kind = self.of(name)
        return None if kind is None else kind.cache.resource_request(name)

    def growable(self, name: JobName) -> int:
        """How many workers the job's controller can be asked to add now without harm."""
        kind, state = self.of(name), self.state(name)
        return 0 if kind is None or state is None else kind.actions.growable(state)


_NOWHERE: Mapping[Host, Placement] = {}
"""One object for all, as callers compare it by identity."""
