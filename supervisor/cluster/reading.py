"""Decodes pods and nodes from the API server's JSON, and keeps some 1 KB of a pod's 5 to 10 KB."""

from datetime import datetime
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import msgspec

from servicekit.kubernetes.objects import Metadata, Owner
from servicekit.spot import ended_at_of, grace_of
from supervisor.cluster.annotations import INJECTED, PREFIX
from supervisor.cluster.objects import Condition, Node, Pod, PodPhase
from supervisor.cluster.podspec import Body, PodSpec, amounts_of
from supervisor.domain.capacity import Effect, Resources, Taint

_USUAL = frozenset({"Ready", "Initialized", "ContainersReady", "PodReadyToStartContainers", "PodScheduled"})
"""Conditions that every pod has; `Pod.ready` is all that is asked of them."""

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


class _Terminated(Body, frozen=True):
    exit_code: int = 0
    finished_at: datetime | None = None


class _State(Body, frozen=True):
    terminated: _Terminated | None = None


class _ContainerStatus(Body, frozen=True):
    state: _State = _State()


class _PodStatus(Body, frozen=True):
    phase: str = PodPhase.UNKNOWN
    reason: str = ""
    message: str = ""
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[Condition, ...] | None = ()
    container_statuses: tuple[_ContainerStatus, ...] | None = ()


class _Pod(Body, frozen=True):
    metadata: _ObjectMetadata
    spec: PodSpec = PodSpec()
    status: _PodStatus = _PodStatus()


class _Taint(Body, frozen=True):
    key: str
    effect: str
    value: str = ""


class _NodeSpec(Body, frozen=True):
    unschedulable: bool = False
    taints: tuple[_Taint, ...] | None = ()
    provider_id: str = msgspec.field(default="", name="providerID")


class _NodeStatus(Body, frozen=True):
    allocatable: dict[str, str | int] | None = None
    conditions: tuple[Condition, ...] | None = ()


class _Node(Body, frozen=True):
    metadata: _ObjectMetadata
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()


class _ObjectOutline(Body, frozen=True):
    metadata: _ObjectMetadata
    spec: Any = None
    status: Any = None


def pod_or_outline(data: bytes | msgspec.Raw, labels: frozenset[str]) -> Pod:
    """Like `read_pod`, but decodes only an outline of a pod with content that this version does not know.

    The outline contains the pod's node and owner. Its conditions and its resources are unknown.

    Raises:
        msgspec.MsgspecError: The object has no metadata.
    """
    try:
        return read_pod(data, labels)
    except (msgspec.MsgspecError, ValueError) as error:
        read = msgspec.json.decode(data, type=_ObjectOutline)
        return Pod(
            metadata=read.metadata.kept(),
            owner=_controller(read.metadata),
            hostname=_hostname(read.metadata, _text(read.spec, "hostname")),
            labels=_chosen(read.metadata, labels),
            annotations=_own(read.metadata),
            account=_text(read.spec, "serviceAccountName"),
            node=_text(read.spec, "nodeName"),
            phase=_phase(_text(read.status, "phase")),
            deleted_at=read.metadata.deletion_timestamp,
            unread=str(error),
        )


def node_or_outline(data: bytes | msgspec.Raw) -> Node:
    """Like `read_node`, but decodes only an outline of a node with content that this version does not know.

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


def read_pod(data: bytes | msgspec.Raw, labels: frozenset[str]) -> Pod:
    """A pod from the API server's JSON, with those of its labels.

    Raises:
        msgspec.MsgspecError: It is none.
        ValueError: An amount is none.
    """
    read = msgspec.json.decode(data, type=_Pod)
    metadata, status = read.metadata, read.status
    conditions = status.conditions or ()
    return Pod(
        metadata=metadata.kept(),
        owner=_controller(metadata),
        hostname=_hostname(metadata, read.spec.hostname),
        labels=_chosen(metadata, labels),
        annotations=_own(metadata),
        account=_shared_name(read.spec.service_account_name),
        node=_shared_name(read.spec.node_name),
        phase=_phase(status.phase),
        reason=status.reason,
        message=status.message,
        ip=status.pod_ip,
        ready=any(each.type == "Ready" and each.status == "True" for each in conditions),
        deleted_at=metadata.deletion_timestamp,
        grace=grace_of(metadata.deletion_grace_period_seconds, read.spec.termination_grace_period_seconds),
        ended_at=_ended_at(status),
        requests=_shared_requests(tuple(read.spec.requests().items())),
        conditions=tuple(each for each in conditions if each.type not in _USUAL),
        shown=_shared_names(read.spec.shown()),
        exit_code=_exit_code(read),
    )


def read_node(data: bytes | msgspec.Raw) -> Node:
    """A node from the API server's JSON.

    Raises:
        msgspec.MsgspecError: It is none.
        ValueError: An amount is none.
    """
    read = msgspec.json.decode(data, type=_Node)
    return Node(
        metadata=read.metadata.kept(),
        labels=read.metadata.labels or {},
        annotations=_own(read.metadata),
        taints=tuple(
            Taint(key=each.key, value=each.value, effect=Effect(each.effect)) for each in read.spec.taints or ()
        ),
        cordoned=read.spec.unschedulable,
        allocatable=amounts_of(read.status.allocatable),
        conditions=read.status.conditions or (),
        provider_id=read.spec.provider_id,
    )


def _controller(metadata: _ObjectMetadata) -> Owner | None:
    controller = next((each for each in metadata.owner_references if each.controller), None)
    return None if controller is None else _shared_owner(controller)


# Without these caches, two thirds of the memory of each pod would be copies of what all pods of its job have. They are
# bounded, unlike the cache of `sys.intern`, whose strings some versions of Python keep forever.


@lru_cache(_NAMES)
def _shared_name(name: str) -> str:
    return name


@lru_cache(_OWNERS)
def _shared_owner(owner: Owner) -> Owner:
    return owner


@lru_cache(_TEMPLATES)
def _shared_value(value: str) -> str:
    return value


@lru_cache(_TEMPLATES)
def _shared_names(names: frozenset[str]) -> frozenset[str]:
    return names


@lru_cache(_TEMPLATES)
def _shared_requests(amounts: tuple[tuple[str, int], ...]) -> Resources:
    return MappingProxyType(dict(amounts))


def _hostname(metadata: _ObjectMetadata, hostname: str) -> str:
    """Empty for a pod that its controller has named: a template may give all pods of a job the same host name."""
    return hostname if metadata.generate_name else ""


def _chosen(metadata: _ObjectMetadata, labels: frozenset[str]) -> dict[str, str]:
    found = metadata.labels or {}
    return {name: _shared_name(found[name]) for name in labels if name in found}


def _own(metadata: _ObjectMetadata) -> dict[str, str]:
    found = metadata.annotations or {}
    return {_shared_name(name): _shared_value(value) for name, value in found.items() if _kept(name)}


def _phase(text: str) -> PodPhase:
    return PodPhase(text) if text in list(PodPhase) else PodPhase.UNKNOWN


def _text(part: object, field: str) -> str:
    value = part.get(field) if isinstance(part, dict) else None
    return value if isinstance(value, str) else ""


def _kept(annotation: str) -> bool:
    return annotation.startswith(PREFIX) and annotation not in INJECTED


def _ended_at(status: _PodStatus) -> datetime | None:
    ended = [each.state.terminated for each in status.container_statuses or ()]
    return ended_at_of([None if each is None else each.finished_at for each in ended])


def _exit_code(pod: _Pod) -> int | None:
    """The first that is not 0, as one container that fails makes a pod fail; None while one has not ended for good."""
    ended = [each.state.terminated for each in pod.status.container_statuses or ()]
    if pod.spec.restart_policy != "Never" and pod.status.phase not in (PodPhase.SUCCEEDED, PodPhase.FAILED):
        return None
    codes = [each.exit_code for each in ended if each is not None]
    if not codes or len(codes) < len(ended):
        return None
    return next((code for code in codes if code), 0)
