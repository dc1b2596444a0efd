"""Decodes pods and nodes from the API server's JSON, and keeps about 1 KB of a pod's 5 to 10 KB."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.objects import Metadata, ObjectKey, Owner
from servicekit.spot import ended_at_of, grace_of, read_labels
from supervisor.cluster.annotations import INJECTED, PREFIX, opts_in
from supervisor.cluster.gangs import GangMember, gang_of
from supervisor.cluster.podspec import Body, PodSpec, amounts_of
from supervisor.domain.capacity import Effect, Machine, Placement, PriceClass, Resources, Taint
from supervisor.domain.ids import Host

T = TypeVar("T")

PODS = Resource(group="", version="v1", kind="Pod", plural="pods", namespaced=True)
NODES = Resource(group="", version="v1", kind="Node", plural="nodes", namespaced=False)


class PodPhase(StrEnum):
    """The phase of a pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class ObjectCondition(msgspec.Struct, frozen=True, rename="camel"):
    """A condition of a pod or node."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod.

    `owner` is its controller. `host` is its name as a host of its job, which a replacement of it has, too. `labels`
    are those that the view keeps, `annotations` our own. `deleted_at` is when its
    grace ends (deletionTimestamp), None while nobody has asked for its deletion, and `grace` the seconds that it was
    given for that, or would be. `ended_at` is when its last container ended, None while one may be running. `requests`
    is what it takes of its node. `shown` are our annotations that one of its volumes shows as a file. `exit_code` is
    known once all containers have ended for good, a second before the phase is. `gang` is what it says of its gang,
    None if it names none. `unread` says why no more than its
    metadata, node and phase could be read; empty where all could.
    """

    metadata: Metadata
    owner: Owner | None
    host: Host
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    account: str = ""
    node: str = ""
    phase: PodPhase = PodPhase.UNKNOWN
    reason: str = ""
    message: str = ""
    ip: str = ""
    ready: bool = False
    deleted_at: datetime | None = None
    grace: float = 30.0
    ended_at: datetime | None = None
    requests: Resources = field(default_factory=dict)
    conditions: tuple[ObjectCondition, ...] = ()
    shown: frozenset[str] = frozenset()
    exit_code: int | None = None
    gang: GangMember | None = None
    unread: str = ""

    @property
    def key(self) -> ObjectKey:
        """Namespace and name."""
        return self.metadata.key

    @property
    def opted_in(self) -> bool:
        """Whether an annotation of the pod asks for supervision."""
        return opts_in(self.annotations)

    @property
    def over(self) -> bool:
        """Whether the pod has ended and uses no resources of its node any more."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)

    @property
    def succeeded(self) -> bool:
        """Whether all its containers have succeeded."""
        return self.phase is PodPhase.SUCCEEDED or self.exit_code == 0

    @property
    def running(self) -> bool:
        """Whether its containers run and it is not being deleted."""
        return self.phase is PodPhase.RUNNING and self.deleted_at is None


SCALE_IN_TAINTS = frozenset({"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"})
"""The taints of nodes that an autoscaler removes."""

_REMOVAL = SCALE_IN_TAINTS | {"node.kubernetes.io/out-of-service"}
"""Those, and the taint of nodes that a person has given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node. `annotations` are our own, `conditions` all of the node's.

    `unread` is as a pod's.
    """

    metadata: Metadata
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    allocatable: Resources = field(default_factory=dict)
    conditions: tuple[ObjectCondition, ...] = ()
    provider_id: str = ""
    unread: str = ""

    @property
    def open(self) -> bool:
        """Whether its kubelet is ready for pods, and nobody keeps pods off it.

        The taint of a removal alone would hold off no pod that tolerates any taint.
        """
        is_ready = any(each.type == "Ready" and each.status == "True" for each in self.conditions)
        return is_ready and not self.cordoned and _REMOVAL.isdisjoint(taint.key for taint in self.taints)


_RESTARTS_IN_PLACE = "AllContainersRestarting"
"""The condition of pods with a rule that restarts all of their containers. It is true until these have been removed."""

_USUAL = frozenset(
    {"Ready", "Initialized", "ContainersReady", "PodReadyToStartContainers", "PodScheduled", _RESTARTS_IN_PLACE}
)
"""Conditions that every pod has, or has all the time; the supervisor reads them as `Pod.ready` and `Pod.phase` only."""

_OWNERS = 4096
"""Owners that are shared by their pods: those of thousands of jobs."""

_NAMES = 16_384
"""Short texts that are shared: namespaces, accounts, thousands of nodes, labels, keys of annotations."""

_TEMPLATES = 128
"""Values from pod templates that are shared. Lists have the pods of a job one after another, and such a value may be
long, so this many are enough."""


class _ObjectMetadata(Body, frozen=True):
    name: str
    uid: str
    resource_version: str
    generate_name: str = ""
    namespace: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: float | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[Owner, ...] = ()

    def kept(self) -> Metadata:
        return Metadata(
            name=self.name,
            uid=self.uid,
            resource_version=self.resource_version,
            namespace=_shared_name(self.namespace),
            creation_timestamp=self.creation_timestamp,
        )


class _PodContainerEnd(Body, frozen=True):
    exit_code: int = 0
    finished_at: datetime | None = None


class _PodContainerState(Body, frozen=True):
    terminated: _PodContainerEnd | None = None


class _StatusOfContainer(Body, frozen=True):
    state: _PodContainerState = _PodContainerState()
    restart_count: int = 0


class _StatusOfPod(Body, frozen=True):
    phase: str = PodPhase.UNKNOWN
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[ObjectCondition, ...] | None = ()
    container_statuses: tuple[_StatusOfContainer, ...] | None = ()

    def known_phase(self) -> PodPhase:
        """The phase; that of a pod which a kubelet restarts in place stays Running.

        Until its init containers are done, it is Pending once more, on its node and with its GPUs.
        """
        phase = PodPhase(self.phase) if self.phase in list(PodPhase) else PodPhase.UNKNOWN
        can_restart = any(each.type == _RESTARTS_IN_PLACE for each in self.conditions or ())
        has_run = can_restart and any(each.restart_count for each in self.container_statuses or ())
        return PodPhase.RUNNING if phase is PodPhase.PENDING and has_run else phase


class _PodObject(Body, frozen=True):
    metadata: _ObjectMetadata
    spec: PodSpec = PodSpec()
    status: _StatusOfPod = _StatusOfPod()


class _NodeTaint(Body, frozen=True):
    key: str
    effect: str
    value: str = ""


class _SpecOfNode(Body, frozen=True):
    unschedulable: bool = False
    taints: tuple[_NodeTaint, ...] | None = ()
    provider_id: str = msgspec.field(default="", name="providerID")


class _StatusOfNode(Body, frozen=True):
    allocatable: dict[str, str | int] | None = None
    conditions: tuple[ObjectCondition, ...] | None = ()


class _NodeObject(Body, frozen=True):
    metadata: _ObjectMetadata
    spec: _SpecOfNode = _SpecOfNode()
    status: _StatusOfNode = _StatusOfNode()


class _ObjectOutline(Body, frozen=True):
    metadata: _ObjectMetadata
    spec: Any = None
    status: Any = None


def pod_or_outline(data: bytes | msgspec.Raw, labels: frozenset[str]) -> Pod:
    """Does the same as `read_pod`, but decodes only an outline of a pod with content that this version does not know.

    The outline contains the pod's node and owner. Its conditions and its resources are unknown.

    Raises:
        msgspec.MsgspecError: The object has no metadata.
    """
    try:
        return read_pod(data, labels)
    except (msgspec.MsgspecError, ValueError) as error:
        outline = msgspec.json.decode(data, type=_ObjectOutline)
        spec = PodSpec(
            node_name=_text(outline.spec, "nodeName"),
            hostname=_text(outline.spec, "hostname"),
            service_account_name=_text(outline.spec, "serviceAccountName"),
        )
        status = _StatusOfPod(phase=_text(outline.status, "phase"))
        read = _PodObject(metadata=outline.metadata, spec=spec, status=status)
        return replace(_kept_pod(read, labels), unread=str(error))


def read_pod(data: bytes | msgspec.Raw, labels: frozenset[str]) -> Pod:
    """Decodes a pod and keeps these of its labels.

    Raises:
        msgspec.MsgspecError: It is not a pod.
        ValueError: A quantity is invalid.
    """
    return _kept_pod(msgspec.json.decode(data, type=_PodObject), labels)


def _kept_pod(read: _PodObject, labels: frozenset[str]) -> Pod:
    metadata, spec, status = read.metadata, read.spec, read.status
    controller = next((each for each in metadata.owner_references if each.controller), None)
    # A template may give a host name to all pods of a job, so that of a pod which its controller has named is ignored.
    hostname = spec.hostname if metadata.generate_name else ""
    known, conditions = metadata.labels or {}, status.conditions or ()
    ended = [each.state.terminated for each in status.container_statuses or ()]
    # Known once no container is started again: the first that is not 0, as one container that fails makes a pod fail.
    # A container with a policy of its own may have rules that start it, or all containers of the pod, again in place.
    exit_code = None
    starts_none_again = spec.restart_policy == "Never" and not any(each.restart_policy for each in spec.containers)
    if starts_none_again or status.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED):
        codes = [each.exit_code for each in ended if each is not None]
        if codes and len(codes) == len(ended):
            exit_code = next((code for code in codes if code), 0)
    return Pod(
        metadata=metadata.kept(),
        owner=None if controller is None else _shared_owner(controller),
        host=Host(hostname or metadata.name),
        labels={name: _shared_name(known[name]) for name in labels if name in known},
        annotations=_own(metadata),
        account=_shared_name(spec.service_account_name),
        node=_shared_name(spec.node_name),
        phase=status.known_phase(),
        reason=status.reason,
        message=status.message,
        ip=status.pod_ip,
        ready=any(each.type == "Ready" and each.status == "True" for each in conditions),
        deleted_at=metadata.deletion_timestamp,
        grace=grace_of(metadata.deletion_grace_period_seconds, spec.termination_grace_period_seconds),
        ended_at=ended_at_of([None if each is None else each.finished_at for each in ended]),
        requests=_shared_requests(tuple(spec.requests().items())),
        conditions=tuple(each for each in conditions if each.type not in _USUAL),
        shown=_shared_names(spec.shown()),
        exit_code=exit_code,
        gang=gang_of(metadata.labels, metadata.annotations, spec.scheduling_group.pod_group_name),
    )


def node_or_outline(data: bytes | msgspec.Raw) -> Node:
    """Does the same as `read_node`, but decodes only an outline of a node with content that this version does not know.

    The conditions and the room of such a node are unknown, so it counts as cordoned.

    Raises:
        msgspec.MsgspecError: The object has no metadata.
    """
    try:
        return read_node(data)
    except (msgspec.MsgspecError, ValueError) as error:
        read = msgspec.json.decode(data, type=_ObjectOutline)
        return Node(
            metadata=read.metadata.kept(),
            labels=read.metadata.labels or {},
            annotations=_own(read.metadata),
            cordoned=True,
            provider_id=_text(read.spec, "providerID"),
            unread=str(error),
        )


def read_node(data: bytes | msgspec.Raw) -> Node:
    """Decodes a node.

    Raises:
        msgspec.MsgspecError: It is not a node.
        ValueError: A quantity is invalid.
    """
    read = msgspec.json.decode(data, type=_NodeObject)
    taints = (Taint(key=each.key, value=each.value, effect=Effect(each.effect)) for each in read.spec.taints or ())
    return Node(
        metadata=read.metadata.kept(),
        labels=read.metadata.labels or {},
        annotations=_own(read.metadata),
        taints=tuple(taints),
        cordoned=read.spec.unschedulable,
        allocatable=amounts_of(read.status.allocatable),
        conditions=read.status.conditions or (),
        provider_id=read.spec.provider_id,
    )


def _own(metadata: _ObjectMetadata) -> dict[str, str]:
    """Returns our own annotations that the supervisor reads."""
    return {
        _shared_name(name): _shared_value(value)
        for name, value in (metadata.annotations or {}).items()
        if name.startswith(PREFIX) and name not in INJECTED
    }


def _text(part: object, field: str) -> str:
    value = part.get(field) if isinstance(part, dict) else None
    return value if isinstance(value, str) else ""


# Without these caches, two thirds of the memory of each pod would be copies of what all pods of its job have. They are
# bounded, unlike the cache of `sys.intern`, whose strings some versions of Python keep forever.


def _same(value: T) -> T:
    return value


_shared_name: Callable[[str], str] = lru_cache(_NAMES)(_same)
_shared_owner: Callable[[Owner], Owner] = lru_cache(_OWNERS)(_same)
_shared_value: Callable[[str], str] = lru_cache(_TEMPLATES)(_same)
_shared_names: Callable[[frozenset[str]], frozenset[str]] = lru_cache(_TEMPLATES)(_same)


@lru_cache(_TEMPLATES)
def _shared_requests(amounts: tuple[tuple[str, int], ...]) -> Resources:
    return MappingProxyType(dict(amounts))


def placements_of(pods: Iterable[Pod]) -> Mapping[Host, Placement]:
    """Returns the placement of each host, which is one of these pods; pods that have ended are left out.

    A pod that is about to end and its replacement may be one host. Then the replacement counts.
    """
    present = [pod for pod in pods if not pod.over]
    return {
        pod.host: Placement(
            pod.metadata.uid, Host(pod.node), terminating=pod.deleted_at is not None, name=pod.metadata.name
        )
        for pod in sorted(present, key=lambda pod: pod.deleted_at is None)
    }


_PRICES = {True: PriceClass.SPOT, False: PriceClass.ON_DEMAND, None: PriceClass.UNKNOWN}

_CLOUDS = {"aws": "aws", "gce": "gcp", "azure": "azure", "qcloud": "tencent"}
"""The clouds by the scheme of `spec.providerID`."""

_PREFIXES = {
    "node.alibabacloud.com/": "aliyun",
    "alibabacloud.com/": "aliyun",
    "eks.amazonaws.com/": "aws",
    "cloud.google.com/": "gcp",
    "kubernetes.azure.com/": "azure",
}
"""The clouds by the prefix of their own labels."""


def machine_of(node: Node) -> Machine:
    """Describes the machine under a node, from the labels that clouds and provisioners set."""
    read = read_labels(node.labels)
    scheme, separator, _ = node.provider_id.partition("://")
    names = (cloud for prefix, cloud in _PREFIXES.items() for label in node.labels if label.startswith(prefix))
    return Machine(
        cloud=_CLOUDS[scheme] if separator and scheme in _CLOUDS else next(names, ""),
        region=read.region,
        zone=read.zone,
        instance_type=read.instance_type,
        price_class=_PRICES[read.is_spot],
        spot_strategy=read.spot_strategy,
    )
