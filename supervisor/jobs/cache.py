"""The cache of the jobs of one kind and their pods."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Generic

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import ResourceClient, Selection
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.reflector import UNDEFINED_SECONDS, Reflector
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.objects import Pod
from supervisor.cluster.placements import placements_of
from supervisor.cluster.view import ClusterView
from supervisor.domain.capacity import Placement, ResourceRequest
from supervisor.domain.ids import Host, JobName, bare_name, cluster_job
from supervisor.domain.ids import namespace as namespace_of
from supervisor.jobs.kind import Admission, J, JobKind, JobReference, JobState

OnJobs = Callable[[Collection[JobName]], None]

Admissions = Callable[[JobState[Any]], Admission | None]
"""Returns the admission of a job; None if no queue manages it."""

_NO_PLACEMENTS: Mapping[Host, Placement] = MappingProxyType({})

_Pods = dict[ObjectKey, tuple[str, Pod]]
"""Pods with the uid of the job that their owner names; empty if it names none."""


class JobCache(Generic[J]):
    """The jobs of one kind; `first` lists them, and `run` watches them.

    Args:
        kind: The kind.
        server: The API server.
        view: The cluster's pods.
        clock: For the reflector.
        bulkhead: Keeps what nobody foresaw with its job or subscriber.
        namespace: The only namespace whose jobs are cached; empty for all.
        admissions: What queues say of jobs.
        undefined_seconds: Pause between checks while the kind is not defined.
    """

    def __init__(  # noqa: PLR0913 - the last ones have defaults
        self,
        kind: JobKind[J],
        server: ApiServer,
        view: ClusterView,
        clock: Clock,
        bulkhead: Bulkhead,
        *,
        namespace: str = "",
        admissions: Admissions = lambda _state: None,
        undefined_seconds: float = UNDEFINED_SECONDS,
    ) -> None:
        self.kind = kind
        self.client = ResourceClient(server, kind.resource, kind.decode, Selection(namespace=namespace))
        self._cache: Cache[J] = Cache(kind.resource.plural, self._job_moved, bulkhead)
        self._reflector = Reflector(
            self.client,
            self._cache,
            clock,
            optional=True,
            undefined_seconds=undefined_seconds,
            on_synced=self._note_listed,
        )
        self._admissions = admissions
        self._bulkhead = bulkhead
        self._jobs: dict[JobName, J] = {}
        self._pods: dict[JobName, _Pods] = {}
        self._counts: Counter[str] = Counter()
        # Asked for with every pass, of all jobs.
        self._placements: dict[JobName, Mapping[Host, Placement]] = {}
        self._states: dict[JobName, JobState[J]] = {}
        self._listeners: list[OnJobs] = []
        self._listed = False
        self._dependents: JobCache[Any] | None = None
        view.pods_changed.add(self._pod_moved)

    def subscribe(self, on_change: OnJobs) -> None:
        """Adds a callback for changes of jobs and their pods."""
        self._listeners.append(on_change)

    def follow(self, dependents: "JobCache[Any]") -> None:
        """From now on, reads the jobs also from those that their controller makes of them; see `Dependent`."""
        self._dependents = dependents
        dependents.subscribe(self._dependents_changed)

    @property
    def listed(self) -> bool:
        """Whether everything that the jobs are read from was ever listed; until then stored jobs are kept."""
        return self._listed and (self._dependents is None or self._dependents.listed)

    @property
    def names(self) -> Collection[JobName]:
        """The names of all jobs; a live view."""
        return self._jobs.keys()

    @property
    def unread(self) -> int:
        """How many jobs do not decode at present."""
        return self._reflector.unread

    def state(self, name: JobName) -> JobState[J] | None:
        """The state of a job; None if there is none of that name. Its pods are read again only when they change."""
        state = self._states.get(name)
        if state is None:
            job = self._joined(name)
            if job is None:
                return None
            state = self._states[name] = JobState.of(self.kind, name, job, list(self.pods_of(job)))
        return replace(state, admission=self._admissions(state))

    def touched(self, names: Collection[JobName]) -> None:
        """Tells the subscribers about changes of what queues say of these jobs."""
        self._changed(names)

    def wrote(self, job: J) -> None:
        """Records the API server's answer to a write, before the watch delivers it."""
        self._cache.record_write(job)

    def placements(self, name: JobName) -> Mapping[Host, Placement]:
        """The placements of the job's workers and launcher; the same object until they change."""
        placements = self._placements.get(name)
        if placements is None:
            job = self._jobs.get(name)
            if job is None:
                return _NO_PLACEMENTS  # Nothing is kept of the names of deleted jobs.
            placements = self._placements[name] = placements_of(self.pods_of(job))
        return placements

    def resource_request(self, name: JobName) -> ResourceRequest | None:
        """The resource request of a run of the job; None if it is unknown."""
        job = self._joined(name)
        return None if job is None else self.kind.resource_request(job)

    def owner_of(self, reference: JobReference) -> JobReference | None:
        """The job of this kind of which the controller has made that one; None if there is none."""
        name = self._namesake(reference.name)
        job = self._jobs.get(name)
        made = None if job is None else self._made(job)
        if job is None or made is None or made.metadata.uid != reference.uid:
            return None
        return JobReference(name, job.metadata.uid)

    def named_as(self, name: JobName) -> J | None:
        """The job of this kind with the name and namespace of one of another kind; None if there is none."""
        return self._jobs.get(self._namesake(name))

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

    async def first(self) -> None:
        """Lists the jobs once the API server answers; there are none while the kind is not defined.

        Raises:
            ApiError: The API server refuses, and waiting would not help.
        """
        await self._reflector.first()

    async def run(self) -> None:
        """Root task: watches the jobs, also if their kind is defined later."""
        await self._reflector.run()

    def _joined(self, name: JobName) -> J | None:
        """A job, with what is read from the one that its controller has made of it."""
        job, dependent = self._jobs.get(name), self.kind.dependent
        made = None if job is None else self._made(job)
        return job if job is None or made is None or dependent is None else dependent.joined(job, made)

    def _made(self, job: J) -> Any:
        """What the controller has made of a job: not what only has the same name."""
        made = None if self._dependents is None else self._dependents.named_as(self._name(job))
        return made if made is not None and made.owner is not None and made.owner.uid == job.metadata.uid else None

    def _namesake(self, name: JobName) -> JobName:
        return cluster_job(namespace_of(name), self.kind.name, bare_name(name))

    def _dependents_changed(self, names: Collection[JobName]) -> None:
        if changed := self._jobs.keys() & {self._namesake(name) for name in names}:
            self._changed(changed)

    def _note_listed(self) -> None:
        self._listed = True

    def _job_moved(self, before: J | None, after: J | None) -> None:
        if before is not None:
            del self._jobs[self._name(before)]
            self._counts[before.metadata.name] -= 1
            if not self._counts[before.metadata.name]:
                del self._counts[before.metadata.name]
        if after is not None:
            self._jobs[self._name(after)] = after
            self._counts[after.metadata.name] += 1
        self._changed({self._name(job) for job in (before, after) if job is not None})

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
            self._changed(names)

    def _changed(self, names: Collection[JobName]) -> None:
        for name in names:
            self._placements.pop(name, None)
            self._states.pop(name, None)
        for listener in self._listeners:
            with self._bulkhead.guard("watch", listener.__qualname__, retried=False):
                listener(names)

    def _name(self, job: J) -> JobName:
        return cluster_job(job.metadata.namespace, self.kind.name, job.metadata.name)
