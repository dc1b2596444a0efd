"""Defines JobKind, which has everything that differs between kinds of cluster jobs, and the values that they share."""

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, StrEnum, auto
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from servicekit.bounds import nearest_seconds
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.objects import Metadata
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.annotations import OURS, SUSPENDED_BY
from supervisor.cluster.gangs import GangDemand, GangMember, PodGroup
from supervisor.cluster.objects import Pod
from supervisor.domain.capacity import ResourceRequest
from supervisor.domain.ids import Host, JobName, cluster_job
from supervisor.domain.job import Result, SupervisedJob
from supervisor.store.interface import Snapshot

RootTasks = Mapping[str, Callable[[], Coroutine[Any, Any, None]]]
"""Root tasks by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonJobSpec:
    """The part of a job's spec that the supervisor reads of every kind.

    Attributes:
        replicas: The number of hosts of a run at present.
        annotations: The annotations of each pod template.
        refusal: Why the job is too large to be read; then nothing but its annotations is known.
        gangs: The gang of each role whose pod template names one.
    """

    replicas: int
    annotations: tuple[Mapping[str, str], ...] = ()
    refusal: str = ""
    gangs: Mapping[str, GangMember] = field(default_factory=dict)

    @property
    def roles(self) -> tuple[Mapping[str, int], str]:
        """The number of hosts of each role, and the role whose number may change."""
        return {JobPodRole.WORKER: self.replicas}, JobPodRole.WORKER

    def surplus(self, group: str) -> int | None:
        """How many more pods a gang counts than a run that it starts has hosts.

        Launchers are members and no hosts. Roles outside the gang are hosts and no members, so the number may be
        negative. None if the role whose number may change is outside.
        """
        members = {role for role, member in self.gangs.items() if member.group == group}
        sizes, scaled = self.roles
        if members and scaled not in members:
            return None
        outside = sum(size for role, size in sizes.items() if role not in members) if members else 0
        return len(members - sizes.keys()) - outside


@dataclass(frozen=True, slots=True, kw_only=True)
class JobObject:
    """The part of a job's object that all kinds have.

    Attributes:
        metadata: The name, namespace and uid.
        annotations: Those of its annotations that begin with our prefix, or that a queue has written.
        deleted: The job is being deleted.
        from_hub: A hub of many clusters has created the job in this one, and writes its spec.
        moved_with: The step, as text, with which that hub has moved the job here; None if it is not moving the job.
        elsewhere: Another controller runs the job, such as one of another cluster; the supervisor then ignores it.
        suspended: The job's controller has to delete all of its pods.
        resource_request: The resource request of a run; None if it is unknown.
        gang: The fewest pods that a field of the job demands of a gang scheduler; None without one.
        spec: None where it is not understood.
    """

    metadata: Metadata
    annotations: Mapping[str, str] = field(default_factory=dict)
    deleted: bool = False
    from_hub: bool = False
    moved_with: str | None = None
    elsewhere: bool = False
    suspended: bool = False
    resource_request: ResourceRequest | None = None
    gang: GangDemand | None = None
    spec: CommonJobSpec | None = None

    @property
    def waiting_since(self) -> datetime | None:
        """When the job's present start began to wait for pods; None if that is unknown, or is now."""
        return self.metadata.creation_timestamp

    @property
    def taken_back(self) -> bool:
        """Whether a hub has undone the supervisor's suspension.

        The suspension and its annotation are written, and given back, in one request, and a hub keeps the annotations
        of its members' objects.
        """
        is_ours = self.annotations.get(SUSPENDED_BY) == OURS
        return self.from_hub and is_ours and self.spec is not None and not self.suspended

    @property
    def run_id(self) -> str:
        """The id of the present run in the object; empty without a run, and for kinds whose launcher is the run.

        It changes with each start, and not when a worker is replaced.
        """
        return ""


J = TypeVar("J", bound=JobObject)


class JobPodRole(StrEnum):
    """The role of a pod in its job."""

    LAUNCHER = "launcher"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class JobReference:
    """The job that a pod belongs to; `uid` is empty if the pod's owner is not the job itself."""

    name: JobName
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Admission:
    """The state of a job in the queue that manages it.

    `held` says why the queue holds the job back or takes its run away, as a sentence; it is empty while the queue
    admits the job, and while the supervisor has taken the job out of the queue.
    """

    held: str = ""


@dataclass(frozen=True, slots=True)
class JobState(Generic[J]):
    """A job and its pods at one moment; `launcher` and `workers` are the pods of those roles.

    `admission` is None if no queue manages the job.
    `run_id` tells the run that goes on from earlier ones; it is empty while there is none.
    `gangs` are the names of the PodGroups that its templates or pods name, `groups` the PodGroups that exist of these
    and of those that the job owns.
    """

    name: JobName
    job: J
    pods: Collection[Pod]
    launcher: Pod | None = None
    workers: Collection[Pod] = ()
    admission: Admission | None = None
    run_id: str = ""
    gangs: frozenset[str] = frozenset()
    groups: Collection[PodGroup] = ()

    @classmethod
    def of(cls, kind: "JobKind[J]", name: JobName, job: J, pods: Collection[Pod]) -> "JobState[J]":
        """Sorts the pods by role; of several launchers, for example after a failed one, the last one counts."""

        def turn(pod: Pod) -> tuple[bool, float]:
            made = pod.metadata.creation_timestamp
            return not pod.over, 0.0 if made is None else nearest_seconds(made)

        launchers = [pod for pod in pods if kind.role(pod.labels) is JobPodRole.LAUNCHER]
        workers = [pod for pod in pods if kind.role(pod.labels) is JobPodRole.WORKER]
        launcher = max(launchers, key=turn, default=None)
        launched = launcher.metadata.uid if launcher is not None and launcher.running else ""
        named = () if job.spec is None else job.spec.gangs.values()
        members = (*named, *(pod.gang for pod in pods))
        return cls(
            name,
            job,
            pods,
            launcher=launcher,
            workers=workers,
            run_id=job.run_id or launched,
            gangs=frozenset(each.group for each in members if each is not None and each.group),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """A rule of the supervisor's role in the namespaces of the jobs, and the reason for it."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDiscovery:
    """How launchers of a kind learn their hosts.

    Attributes:
        directory: The directory of a launcher where the controller mounts its host lists.
        file: The script in it that a launcher calls to print its hosts.
        script: The replacement of that script, which excludes the hosts in the file `excluded-hosts`.
    """

    directory: str
    file: str
    script: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenField:
    """A field of a job's spec that the actions of its kind write.

    Attributes:
        path: The names of the fields from the spec to it. `[NAME]` stands for every item of a list whose items the
            field NAME tells apart.
        mark: The annotation under which the present value is the supervisor's.
        only: The one value that is the supervisor's; None if any is, also a missing one.
    """

    path: tuple[str, ...]
    mark: str
    only: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HubView:
    """What a hub of many clusters has to know of the jobs of a kind in its members.

    Attributes:
        written: Every field of the spec that the actions write.
        defaulted: The paths from the spec to fields that a member's API server fills in, and nobody may change.
        failures: The conditions, or the phases, of a job that has failed for good.
        phase: The path from the status to the phase of a job, for kinds without conditions.
        final: The field of the status without which a failure is not for good; empty if each is.
        hub_aggregates: Hubs know themselves how to show the status of such a job.
    """

    written: tuple[WrittenField, ...]
    defaulted: tuple[tuple[str, ...], ...] = ()
    failures: frozenset[str] = frozenset({"Failed"})
    phase: tuple[str, ...] = ()
    final: str = ""
    hub_aggregates: bool = False


class ActionProgress(Enum):
    """The progress of an action."""

    PENDING = auto()
    """The action is not in place yet and must be repeated in a moment."""
    SETTLING = auto()
    """The action is in place, but must be checked again in a moment."""
    IN_PLACE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependent(Generic[J]):
    """The job of another kind, with the same name, that the controller of a kind makes from each job.

    Attributes:
        kind: The name of that kind, whose jobs know their `owner`.
        joined: Returns a job with what is read from the one that was made of it.
    """

    kind: str
    joined: Callable[[J, Any], J]


class JobActions(Protocol[J]):
    """The actions on jobs of one kind. Every action may be repeated, and continues where it was interrupted.

    All of them raise ApiError: NotFoundError if the job is gone, others if the action should be retried.

    Attributes:
        standby_tasks: Root tasks of every replica, such as reflectors of further resources.
        leader_tasks: Root tasks of the leader.
    """

    standby_tasks: RootTasks
    leader_tasks: RootTasks

    async def exclude(self, state: JobState[J], hosts: Collection[Host]) -> ActionProgress:
        """Makes the running launcher list all of the controller's hosts except these."""

    async def suspend(self, state: JobState[J]) -> ActionProgress:
        """Makes the controller end the run and delete the job's pods. The action is in place once no pod is left."""

    async def resume(self, state: JobState[J], workers: int, requested: int) -> ActionProgress:
        """Makes the controller start a suspended job with `workers` of the `requested` workers."""

    async def grow(self, state: JobState[J], workers: int, number: int, seconds: float) -> None:
        """Asks the controller to grow the run to `workers` workers within `seconds`; `number` is the attempt's."""

    async def end(self, state: JobState[J], result: Result) -> None:
        """Marks a suspended job as timed out or terminated, so that it is not resumed."""

    def growable(self, state: JobState[J]) -> int:
        """How many workers the controller can be asked to add now without harm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterContext:
    """The dependencies of the actions of all kinds.

    Attributes:
        server: For resources of a kind besides its jobs and their pods.
        pods: Changes pods.
        snapshot: Returns the stored jobs and notices.
        may_act: Called before changes that follow from no decision about one job.
        on_change: To be called when `growable` may have changed.
        clock: For instants.
        bulkhead: Keeps what nobody foresaw with its object.
        namespaces: The namespaces whose objects are watched; empty for all.
    """

    server: ApiServer
    pods: ResourceClient[Pod]
    snapshot: Callable[[], Snapshot]
    may_act: Callable[[], bool]
    on_change: Callable[[], None]
    clock: Clock
    bulkhead: Bulkhead
    namespaces: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KindContext(Generic[J]):
    """The dependencies of the actions of one kind.

    Attributes:
        cluster: The dependencies of all kinds.
        client: Changes jobs.
        wrote: Records the API server's answer to a write, before the watch delivers it.
        state: Returns the state of a job; None if there is none of that name.
        namesakes: Returns whether a job in another namespace has the same name.
        suspends: Whether `client` writes a job's field `suspend`; False where a queue owns the field.
    """

    cluster: ClusterContext
    client: ResourceClient[J]
    wrote: Callable[[J], None]
    state: Callable[[JobName], JobState[J] | None]
    namesakes: Callable[[JobName], bool]
    suspends: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind(Generic[J]):
    """One kind of job: everything that differs between kinds.

    Attributes:
        name: The kind in lower case, as in the names of its jobs.
        resource: The API resource of its jobs, which may be defined after the supervisor starts, or never.
        rights: The rights that the supervisor needs for this kind, in addition to those for all kinds.
        pod_labels: The labels of pods that `role` and `reference` need; other labels are not cached.
        annotations: The annotations with our prefix that its jobs have beside those of all kinds.
        discovery: How running launchers discover their hosts; None if they do not.
        dependent: The job of another kind that the controller makes of each job, and whose pods are the job's; None if
            there is none.
        failpoints: The failpoints in its actions.
        decode: Decodes a job from the API server's JSON. It returns also a job whose spec or status cannot be decoded,
            which `observe` ignores; it raises MsgspecError if the data is not a Kubernetes object.
        role: Returns the role of a pod with these labels; None if it is neither launcher nor worker.
        reference: Returns the job of this kind that a pod belongs to; None if it belongs to none. See `owned_by`.
        observe: Returns the job to store, from its state, from the stored job of that name and the present Unix
            seconds; None if the job is not, or not any more, supervised. Pure.
        actions: Builds the actions of this kind.
        hub: What a hub has to know of its jobs.
    """

    name: str
    resource: Resource
    rights: tuple[Right, ...]
    pod_labels: frozenset[str]
    decode: Callable[[bytes | msgspec.Raw], J]
    role: Callable[[Mapping[str, str]], JobPodRole | None]
    reference: Callable[[Pod], JobReference | None]
    observe: Callable[[JobState[J], SupervisedJob | None, float], SupervisedJob | None]
    actions: Callable[[KindContext[J]], JobActions[J]]
    hub: HubView
    annotations: frozenset[str] = frozenset()
    discovery: HostDiscovery | None = None
    dependent: Dependent[J] | None = None
    failpoints: Sequence[StrEnum] = ()


AnyKind = JobKind[Any]
"""A kind with any type of job objects."""


def owned_by(pod: Pod, *, name: str, resource: Resource) -> JobReference | None:
    """Builds the `JobKind.reference` of a kind, with this name and resource, whose jobs own their pods.

    The owner alone counts: a job of the same name in another namespace has pods with the same labels.
    """
    owner = pod.owner
    if owner is None or not owner.is_of(resource.group, resource.kind):
        return None
    return JobReference(cluster_job(pod.metadata.namespace, name, owner.name), owner.uid)
