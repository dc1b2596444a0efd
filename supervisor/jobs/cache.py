"""Caches the jobs of a cluster and their pods, and connects each kind with its actions."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Generic

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.follower import Follower
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.reflector import UNDEFINED_SECONDS
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.gangs import PodGroup
from supervisor.cluster.objects import Pod, placements_of
from supervisor.cluster.view import ClusterView
from supervisor.domain.capacity import Placement, ResourceRequest
from supervisor.domain.ids import Host, JobName, bare_name, cluster_job, kind_of
from supervisor.domain.ids import namespace as namespace_of
from supervisor.domain.job import SupervisedJob
from supervisor.jobs.kind import Admission, ClusterContext, J, JobActions, JobKind, JobReference, JobState, KindContext
from supervisor.jobs.queues.kueue.workloads import KueueActions, QueuedJobClient, Workloads

OnJobs = Callable[[Collection[JobName]], None]

_NO_PLACEMENTS: Mapping[Host, Placement] = MappingProxyType({})
"""One object for all, as callers compare it by identity."""

_OwnedPods = dict[ObjectKey, tuple[str, Pod]]
"""Pods with the uid of the job that their owner names; empty if it names none."""


class JobCache(Generic[J]):
    """Caches the jobs of one kind; the caller runs the `follower`, which lists and watches them.

    Args:
        kind: The kind, which may be defined after the supervisor starts.
        server: The API server.
        view: The cluster's pods.
        clock: For the follower.
        bulkhead: Keeps what nobody foresaw with its job or subscriber.
        namespaces: The namespaces whose jobs are cached; empty for all.
        admissions: Returns the admission of a job; None if no queue manages it.
        groups: Returns the PodGroups of a job.
        undefined_seconds: Pause between checks while the kind is not defined.

    Attributes:
        listeners: Called with the names of jobs when they, their pods or what queues say of them have changed.
    """

    def __init__(  # noqa: PLR0913 - the last ones have defaults
        self,
        kind: JobKind[J],
        server: ApiServer,
        view: ClusterView,
        clock: Clock,
        bulkhead: Bulkhead,
        *,
        namespaces: Collection[str] = (),
        admissions: Callable[[JobState[Any]], Admission | None] = lambda _state: None,
        groups: Callable[[JobState[Any]], Collection[PodGroup]] = lambda _state: (),
        undefined_seconds: float = UNDEFINED_SECONDS,
    ) -> None:
        self.kind = kind
        self.client = ResourceClient(server, kind.resource, kind.decode)
        self.follower = Follower(
            self.client,
            self._job_moved,
            clock,
            bulkhead,
            namespaces=namespaces,
            undefined_seconds=undefined_seconds,
        )
        # Records the API server's answer to a write, before the watch delivers it.
        self.wrote: Callable[[J], None] = self.follower.record_write
        self._admissions = admissions
        self._groups = groups
        self._bulkhead = bulkhead
        self._jobs: dict[JobName, J] = {}
        self.names: Collection[JobName] = self._jobs.keys()
        self._pods: dict[JobName, _OwnedPods] = {}
        self._counts: Counter[str] = Counter()
        # Asked for with every pass, of all jobs.
        self._placements: dict[JobName, Mapping[Host, Placement]] = {}
        self._states: dict[JobName, JobState[J]] = {}
        self.listeners: list[OnJobs] = []
        self._dependents: JobCache[Any] | None = None
        view.pods_changed.append(self._pod_moved)

    def follow(self, dependents: "JobCache[Any]") -> None:
        """From now on, reads each job together with the job that its controller makes of it; see `Dependent`."""
        self._dependents = dependents

        def changed(names: Collection[JobName]) -> None:
            if touched := self._jobs.keys() & {self._namesake(name) for name in names}:
                self.touched(touched)

        dependents.listeners.append(changed)

    @property
    def listed(self) -> bool:
        """Whether each resource that the jobs are read from was listed once. Until then stored jobs are kept."""
        return self.follower.listed and (self._dependents is None or self._dependents.listed)

    def state(self, name: JobName) -> JobState[J] | None:
        """The state of a job; None if no job has that name. Its pods are read again only when they change."""
        state = self._state_of_pods(name)
        if state is None:
            return None
        return replace(state, admission=self._admissions(state), groups=self._groups(state))

    def _state_of_pods(self, name: JobName) -> JobState[J] | None:
        """The state of a job without its queue and its PodGroups."""
        state, job = self._states.get(name), self._jobs.get(name)
        if state is None and job is not None:
            made, dependent = self._made(job), self.kind.dependent
            joined = job if made is None or dependent is None else dependent.joined(job, made)
            state = self._states[name] = JobState.of(self.kind, name, joined, list(self.pods_of(job)))
        return state

    def in_gang(self, group: PodGroup) -> Collection[JobName]:
        """The jobs that own a PodGroup, or whose templates or pods name it."""
        namespace, name = group.metadata.key
        states = (self._state_of_pods(each) for each, job in self._jobs.items() if job.metadata.namespace == namespace)
        present = (state for state in states if state is not None)
        return [each.name for each in present if name in each.gangs or each.job.metadata.uid in group.owners]

    def touched(self, names: Collection[JobName]) -> None:
        """Tells the listeners that these jobs, their pods, or their admissions in queues have changed."""
        for name in names:
            self._placements.pop(name, None)
            self._states.pop(name, None)
        for listener in self.listeners:
            with self._bulkhead.guard("watch", listener.__qualname__, retried=False):
                listener(names)

    def placements(self, name: JobName) -> Mapping[Host, Placement]:
        """The placements of the job's workers and launcher; the same object until they change."""
        placements = self._placements.get(name)
        if placements is None:
            job = self._jobs.get(name)
            if job is None:
                return _NO_PLACEMENTS  # Nothing is kept of the names of deleted jobs.
            placements = self._placements[name] = placements_of(self.pods_of(job))
        return placements

    def owner_of(self, reference: JobReference) -> JobReference | None:
        """The job of this kind from which a controller has made the referenced job; None if there is none."""
        name = self._namesake(reference.name)
        job = self._jobs.get(name)
        made = None if job is None else self._made(job)
        if job is None or made is None or made.metadata.uid != reference.uid:
            return None
        return JobReference(name, job.metadata.uid)

    def pods_of(self, job: J) -> Iterator[Pod]:
        """The pods of a job, by the owner's uid if they have it: a job may be deleted and created again by name."""
        made = self._made(job)
        if self._dependents is not None and made is not None:
            return self._dependents.pods_of(made)
        pods = self._pods.get(self._name(job), {}).values()
        return (pod for uid, pod in pods if uid in ("", job.metadata.uid))

    def namesakes(self, name: JobName) -> bool:
        """Whether a job in another namespace has the same name."""
        job = self._jobs.get(name)
        return job is not None and self._counts[job.metadata.name] > 1

    def _made(self, job: J) -> Any:
        """The job that the controller has made of this one, unless it only has the same name; None if there is none."""
        if self._dependents is None:
            return None
        made = self._dependents._jobs.get(self._dependents._namesake(self._name(job)))  # noqa: SLF001 - of this class
        return made if made is not None and made.owner is not None and made.owner.uid == job.metadata.uid else None

    def _namesake(self, name: JobName) -> JobName:
        """The name that a job of this kind has if it has the name and namespace of a job of another kind."""
        return cluster_job(namespace_of(name), self.kind.name, bare_name(name))

    def _name(self, job: J) -> JobName:
        return cluster_job(job.metadata.namespace, self.kind.name, job.metadata.name)

    def _job_moved(self, before: J | None, after: J | None) -> None:
        if before is not None:
            del self._jobs[self._name(before)]
            self._counts[before.metadata.name] -= 1
            if not self._counts[before.metadata.name]:
                del self._counts[before.metadata.name]
        if after is not None:
            self._jobs[self._name(after)] = after
            self._counts[after.metadata.name] += 1
        self.touched({self._name(job) for job in (before, after) if job is not None})

    def _pod_moved(self, before: Pod | None, after: Pod | None) -> None:
        names: set[JobName] = set()
        for pod in (before, after):
            if pod is not None and (reference := self.kind.reference(pod)) is not None:
                names.add(reference.name)
                pods = self._pods.setdefault(reference.name, {})
                if pod is after:
                    pods[pod.key] = (reference.uid, pod)
                else:
                    pods.pop(pod.key, None)
        for name in names:
            if not self._pods[name]:
                del self._pods[name]
        if names:
            self.touched(names)


@dataclass(frozen=True, slots=True)
class ConnectedKind:
    """A kind with the cache and the actions of its jobs."""

    cache: JobCache[Any]
    actions: JobActions[Any]


def connect(kind: JobKind[J], cache: JobCache[J], cluster: ClusterContext, workloads: Workloads) -> ConnectedKind:
    """Connects the actions of a kind with a cluster, and with the queue of those jobs that one manages."""
    context = KindContext(
        cluster=cluster,
        client=cache.client,
        wrote=cache.wrote,
        state=cache.state,
        namesakes=cache.namesakes,
    )
    client = QueuedJobClient(cluster.server, kind.resource, kind.decode)
    queued = kind.actions(replace(context, client=client, suspends=False))
    return ConnectedKind(cache, KueueActions(kind.actions(context), queued, workloads))


class ClusterJobs:
    """Gives access to all jobs of a cluster. Each query goes to the cache of the job's kind."""

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

    def subscribe(self, on_change: OnJobs) -> None:
        """Adds a callback for changes of jobs and their pods."""
        for kind in self:
            kind.cache.listeners.append(on_change)

    def touched(self, names: Collection[JobName]) -> None:
        """Tells the listeners that the admissions of these jobs in queues have changed."""
        for name in names:
            if (kind := self.of(name)) is not None:
                kind.cache.touched([name])

    def regrouped(self, group: PodGroup) -> None:
        """Tells the listeners that what a PodGroup demands of its jobs has changed."""
        for kind in self:
            if names := kind.cache.in_gang(group):
                kind.cache.touched(names)

    def state(self, name: JobName) -> JobState[Any] | None:
        """The state of a job; None if no job has that name."""
        kind = self.of(name)
        return None if kind is None else kind.cache.state(name)

    def is_released(self, job: SupervisedJob) -> bool:
        """Whether a job that was supervised still exists although its kind does not supervise it any more."""
        kind, state = self.of(job.name), self.state(job.name)
        if kind is None or state is None or state.job.metadata.uid != job.uid or state.job.deleted:
            return False
        return kind.cache.kind.observe(state, None, job.observed.registered_at) is None

    def owner_of(self, reference: JobReference) -> JobReference:
        """The job from which a controller has made that job; the job itself if no controller has made it."""
        owners = filter(None, (kind.cache.owner_of(reference) for kind in self))
        return next(owners, reference)

    def placements(self, name: JobName) -> Mapping[Host, Placement]:
        """The placements of the job's workers and launcher; the same object until they change."""
        kind = self.of(name)
        return _NO_PLACEMENTS if kind is None else kind.cache.placements(name)

    def resource_request(self, name: JobName) -> ResourceRequest | None:
        """The resource request of a run of the job; None if it is unknown."""
        state = self.state(name)
        return None if state is None else state.job.resource_request

    def growable(self, name: JobName) -> int:
        """How many workers the job's controller can be asked to add now without harm."""
        kind, state = self.of(name), self.state(name)
        return 0 if kind is None or state is None else kind.actions.growable(state)
