"""JobKind: the protocol that each kind of cluster job implements."""

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from servicekit.bounds import nearest_seconds
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.objects import Metadata
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.objects import Pod
from supervisor.domain.capacity import ResourceRequest
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Result, SupervisedJob
from supervisor.store.interface import Snapshot


class JobObject(Protocol):
    """A job as a Kubernetes object."""

    @property
    def metadata(self) -> Metadata:
        """The name, namespace and uid."""

    @property
    def deleted(self) -> bool:
        """Whether the job is being deleted."""

    @property
    def annotations(self) -> Mapping[str, str]:
        """Those of its annotations that begin with our prefix, or that a queue has written."""

    @property
    def suspended(self) -> bool:
        """Whether its controller has been told to delete all of its pods."""


J = TypeVar("J", bound=JobObject)


class Role(StrEnum):
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
    """

    name: JobName
    job: J
    pods: Collection[Pod]
    launcher: Pod | None = None
    workers: Collection[Pod] = ()
    admission: Admission | None = None
    run_id: str = ""

    @classmethod
    def of(cls, kind: "JobKind[J]", name: JobName, job: J, pods: Collection[Pod]) -> "JobState[J]":
        """Sorts the pods by role; of several launchers, for example after a failed one, the last one counts."""
        launchers = [pod for pod in pods if kind.role(pod.labels) is Role.LAUNCHER]
        workers = [pod for pod in pods if kind.role(pod.labels) is Role.WORKER]
        launcher = max(launchers, key=_turn, default=None)
        return cls(name, job, pods, launcher=launcher, workers=workers, run_id=kind.run_id(job, launcher))


def launched_run(launcher: Pod | None) -> str:
    """The id of the run of a launcher's pod."""
    return launcher.metadata.uid if launcher is not None and launcher.running else ""


def _turn(pod: Pod) -> tuple[bool, float]:
    made = pod.metadata.creation_timestamp
    return not pod.over, 0.0 if made is None else nearest_seconds(made)


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """A rule of the supervisor's cluster role, and the reason for it."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """How launchers of a kind learn their hosts.

    Attributes:
        directory: The directory of a launcher where the controller mounts its host lists.
        file: The script in it that a launcher calls to print its hosts.
        script: The replacement of that script, which excludes the hosts in the file `excluded-hosts`.
    """

    directory: str
    file: str
    script: str


class Progress(Enum):
    """The progress of an action."""

    PENDING = auto()
    """The action is not in place yet and must be repeated in a moment."""
    SETTLING = auto()
    """The action is in place, but must be checked again in a moment."""
    IN_PLACE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependent(Generic[J]):
    """The job of another kind that the controller of a kind makes of each job, with the job's name.

    Attributes:
        kind: The name of that kind, whose jobs know their `owner`.
        joined: Returns a job with what is read from the one that was made of it.
    """

    kind: str
    joined: Callable[[J, Any], J]


class JobActions(Protocol[J]):
    """The actions on jobs of one kind. Every action may be repeated, and continues where it was interrupted.

    All of them raise ApiError: NotFoundError if the job is gone, others if the action should be retried.
    """

    async def exclude(self, state: JobState[J], hosts: Collection[Host]) -> Progress:
        """Makes the running launcher list all of the controller's hosts except these."""

    async def remove(self, state: JobState[J], pods: Collection[Pod]) -> None:
        """Deletes the pods of excluded hosts whose nodes will be gone in a moment."""

    async def suspend(self, state: JobState[J]) -> Progress:
        """Makes the controller end the run and release the job's pods; it is in place once none is left."""

    async def resume(self, state: JobState[J], workers: int, requested: int) -> Progress:
        """Makes the controller start a suspended job with `workers` of its `requested` workers."""

    async def grow(self, state: JobState[J], workers: int, number: int, seconds: float) -> None:
        """Asks the controller to grow the run to `workers` workers within `seconds`; `number` is the attempt's."""

    async def end(self, state: JobState[J], result: Result) -> None:
        """Marks a suspended job as timed out or terminated, so that it is not resumed."""

    def growable(self, state: JobState[J]) -> int:
        """How many workers the controller can be asked to add now without harm."""

    @property
    def standby_tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Root tasks of every replica by name, such as reflectors of further resources."""

    @property
    def leader_tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Root tasks of the leader by name."""


class Jobs(Protocol[J]):
    """The cached jobs of one kind."""

    def state(self, name: JobName) -> JobState[J] | None:
        """The state of a job; None if there is none of that name."""

    def namesakes(self, name: JobName) -> bool:
        """Whether a job in another namespace has the same name."""

    def wrote(self, job: J) -> None:
        """Records the API server's answer to a write, before the watch delivers it."""


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
        namespace: The only namespace whose objects are watched; empty for all.
    """

    server: ApiServer
    pods: ResourceClient[Pod]
    snapshot: Callable[[], Snapshot]
    may_act: Callable[[], bool]
    on_change: Callable[[], None]
    clock: Clock
    bulkhead: Bulkhead
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindContext(Generic[J]):
    """The dependencies of the actions of one kind: its cached jobs, a client for them, and the cluster."""

    jobs: Jobs[J]
    client: ResourceClient[J]
    cluster: ClusterContext


class JobKind(Protocol[J]):
    """One kind of job: everything that differs between kinds."""

    @property
    def name(self) -> str:
        """The kind in lower case, as in the names of its jobs."""

    @property
    def resource(self) -> Resource:
        """The API resource of its jobs, which may be defined after the supervisor starts, or never."""

    @property
    def pod_labels(self) -> frozenset[str]:
        """The labels of pods that `role` and `reference` need; other labels are not cached."""

    @property
    def annotations(self) -> frozenset[str]:
        """The annotations with our prefix that its jobs have beside those of all kinds."""

    @property
    def rights(self) -> tuple[Right, ...]:
        """The rights that the supervisor needs for this kind, in addition to those for all kinds."""

    @property
    def discovery(self) -> Discovery | None:
        """How running launchers discover their hosts; None if they do not."""

    @property
    def dependent(self) -> Dependent[J] | None:
        """The job of another kind that the controller makes of each job, and whose pods are the job's; None if none."""

    @property
    def failpoints(self) -> Sequence[StrEnum]:
        """The failpoints in its actions."""

    def decode(self, data: bytes | msgspec.Raw) -> J:
        """Decodes a job from the API server's JSON.

        A job whose spec or status cannot be decoded must still be returned; `observe` ignores it.

        Raises:
            msgspec.MsgspecError: The data is not a Kubernetes object.
        """

    def role(self, labels: Mapping[str, str]) -> Role | None:
        """The role of a pod with these labels; None if it is neither launcher nor worker."""

    def run_id(self, job: J, launcher: Pod | None) -> str:
        """The id of the job's run: it changes with each start, and not when a worker is replaced.

        It is empty while there is none: see `launched_run` for kinds whose launchers are their runs.
        """

    def reference(self, pod: Pod) -> JobReference | None:
        """The job of this kind that a pod belongs to, by its owner; None if it belongs to none."""

    def runs_elsewhere(self, state: JobState[J]) -> bool:
        """Whether another controller runs the job, such as one of another cluster; the supervisor then ignores it."""

    def observe(self, state: JobState[J], known: SupervisedJob | None, now: float) -> SupervisedJob | None:
        """The job to store; None if it is not, or not any more, supervised. Pure.

        Args:
            state: The job and its pods.
            known: The stored job of that name.
            now: Unix seconds.
        """

    def resource_request(self, job: J) -> ResourceRequest | None:
        """The resource request of a run; None if it is unknown."""

    def actions(self, context: KindContext[J]) -> JobActions[J]:
        """Builds the actions of this kind."""


AnyKind = JobKind[Any]
"""A kind with any type of job objects."""
