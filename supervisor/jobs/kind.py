"""JobKind: all that differs between the kinds of jobs that controllers of a cluster run."""

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from servicekit.clock import Clock
from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.objects import Metadata
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.objects import Pod
from supervisor.domain.capacity import ResourceRequest
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import SupervisedJob
from supervisor.store.interface import Snapshot


class JobObject(Protocol):
    """A job as the API server has it."""

    @property
    def metadata(self) -> Metadata:
        """Its name, namespace and uid."""

    @property
    def deleted(self) -> bool:
        """Whether somebody has deleted it."""


J = TypeVar("J", bound=JobObject)


class Role(StrEnum):
    """What a pod of a job is for."""

    LAUNCHER = "launcher"
    WORKER = "worker"


@dataclass(frozen=True, slots=True)
class JobReference:
    """The job that a pod belongs to; `uid` is empty where the pod's owner is not the job itself."""

    name: JobName
    uid: str = ""


@dataclass(frozen=True, slots=True)
class JobState(Generic[J]):
    """A job and its pods at one moment; `launcher` and `workers` are the pods of those roles."""

    name: JobName
    job: J
    pods: Collection[Pod]
    launcher: Pod | None = None
    workers: Collection[Pod] = ()

    @classmethod
    def of(cls, kind: "JobKind[J]", name: JobName, job: J, pods: Collection[Pod]) -> "JobState[J]":
        """Sorts the pods by their roles; of several launchers, as after one that has failed, the last one counts."""
        launchers = [pod for pod in pods if kind.role(pod.labels) is Role.LAUNCHER]
        workers = [pod for pod in pods if kind.role(pod.labels) is Role.WORKER]
        return cls(name, job, pods, launcher=max(launchers, key=_turn, default=None), workers=workers)


def _turn(pod: Pod) -> tuple[bool, float]:
    made = pod.metadata.creation_timestamp
    return not pod.over, 0.0 if made is None else made.timestamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """A rule of the supervisor's cluster role, and what it is needed for."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """How launchers of a kind learn their hosts.

    Attributes:
        directory: Where the controller mounts its lists of hosts in a launcher.
        file: The script in it that a launcher calls to print its hosts.
        script: Replaces that script, and leaves out the hosts in the file `excluded-hosts`.
    """

    directory: str
    file: str
    script: str


class Progress(Enum):
    """How far an action has come."""

    PENDING = auto()
    """It is not in place yet: do it again in a moment."""
    SETTLING = auto()
    """It is in place, and has to be looked at again in a moment."""
    IN_PLACE = auto()


class JobActions(Protocol[J]):
    """What is done to the jobs of one kind; every action may be repeated, and continues where it was interrupted.

    All raise ApiError: NotFoundError where the job is gone, others where the action is to be tried again.
    """

    async def exclude(self, state: JobState[J], hosts: Collection[Host]) -> Progress:
        """Has the running launcher list all of the controller's hosts but these."""

    async def remove(self, state: JobState[J], pods: Collection[Pod]) -> None:
        """Deletes the pods of excluded hosts, whose nodes will be gone in a moment."""

    async def suspend(self, state: JobState[J]) -> Progress:
        """Has the controller end the run and release the job's pods; in place once none is left."""

    async def resume(self, state: JobState[J], workers: int, requested: int) -> Progress:
        """Has the controller start a suspended job with so many workers, of those that it requested."""

    async def grow(self, state: JobState[J], workers: int, number: int, seconds: float) -> None:
        """Has the controller add workers to the run, up to `workers`, within so many seconds; try `number`."""

    async def time_out(self, state: JobState[J]) -> None:
        """Marks a suspended job as one that waited for too long, and is not resumed."""

    def growable(self, state: JobState[J]) -> int:
        """Returns how many workers the controller can be asked to add now without harm."""

    @property
    def standby_tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Root tasks by name, of every replica: what else of the kind has to be followed."""

    @property
    def leader_tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """Root tasks by name, of the leader."""


class Jobs(Protocol[J]):
    """The jobs of one kind as they are now."""

    def state(self, name: JobName) -> JobState[J] | None:
        """Returns a job and its pods; None where there is none of that name."""

    def namesakes(self, name: JobName) -> bool:
        """Returns whether a job of another namespace has the same name."""

    def wrote(self, job: J) -> None:
        """Takes in the API server's answer to a change, which the watch tells of later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterContext:
    """What the actions of all kinds work with.

    Attributes:
        server: For what a kind needs beside its jobs and their pods.
        pods: Changes pods.
        snapshot: Returns what is stored.
        may_act: Asked before anything is changed that was not decided for one job.
        on_change: Called when `growable` may have changed.
        clock: For instants.
        namespace: The only namespace whose objects are followed; empty for all.
    """

    server: ApiServer
    pods: ResourceClient[Pod]
    snapshot: Callable[[], Snapshot]
    may_act: Callable[[], bool]
    on_change: Callable[[], None]
    clock: Clock
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindContext(Generic[J]):
    """What the actions of one kind work with: its jobs as they are now, what changes them, and the cluster."""

    jobs: Jobs[J]
    client: ResourceClient[J]
    cluster: ClusterContext


class JobKind(Protocol[J]):
    """One kind of job: everything about it that is not the same for all kinds."""

    @property
    def name(self) -> str:
        """The kind in lower case, as in the names of its jobs."""

    @property
    def resource(self) -> Resource:
        """The API resource of its jobs, which may be defined later than the supervisor starts, or never."""

    @property
    def pod_labels(self) -> frozenset[str]:
        """The labels of its pods that `role` and `reference` need; others are not kept."""

    @property
    def rights(self) -> tuple[Right, ...]:
        """What the supervisor may do because of this kind, beside what it may do for all."""

    @property
    def discovery(self) -> Discovery | None:
        """How its launchers learn their hosts; None where they do not ask for them as they run."""

    @property
    def failpoints(self) -> Sequence[StrEnum]:
        """The points of its actions at which tests kill the supervisor."""

    def decode(self, data: bytes | msgspec.Raw) -> J:
        """Reads a job from the API server's JSON.

        A job whose spec or status is not understood is still a job: `observe` leaves it alone.

        Raises:
            msgspec.MsgspecError: It is no object at all.
        """

    def role(self, labels: Mapping[str, str]) -> Role | None:
        """Returns what a pod with those labels is for; None where it is neither launcher nor worker."""

    def reference(self, pod: Pod) -> JobReference | None:
        """Returns the job of this kind that a pod belongs to, by its owner; None where it belongs to none."""

    def is_queued(self, state: JobState[J]) -> bool:
        """Returns whether a queue holds the job back: until it is admitted it is none of the supervisor's business."""

    def observe(self, state: JobState[J], known: SupervisedJob | None, now: float) -> SupervisedJob | None:
        """Returns the job as it is to be stored; None for one that is not, or no longer, supervised. Pure.

        Args:
            state: The job and its pods.
            known: What is stored under the name.
            now: Unix seconds.
        """

    def resource_request(self, job: J) -> ResourceRequest | None:
        """Returns what the pods of a run ask for; None where that is not known."""

    def actions(self, context: KindContext[J]) -> JobActions[J]:
        """Connects the kind's actions with a cluster."""


AnyKind = JobKind[Any]
"""A kind whose objects are of whatever type it reads them to."""
