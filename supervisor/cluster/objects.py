"""Pods and nodes as the supervisor caches them, with the needed fields only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

import msgspec

from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.objects import Metadata, ObjectKey, Owner
from supervisor.cluster.annotations import opts_in
from supervisor.domain.capacity import Resources, Taint
from supervisor.domain.ids import Host

PODS = Resource(group="", version="v1", kind="Pod", plural="pods", namespaced=True)
NODES = Resource(group="", version="v1", kind="Node", plural="nodes", namespaced=False)


class PodPhase(StrEnum):
    """The phase of a pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    """A condition of a pod or node."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod.

    `owner` is its controller. `hostname` is the host name of a pod whose own name ends in random letters; it is empty
    for others. `labels` are those that the view was told to keep, `annotations` our own. `deleted_at` is when its
    grace ends (deletionTimestamp), None while nobody has asked for its deletion, and `grace` the seconds that it was
    given for that, or would be. `ended_at` is when its last container ended, None while one may be running. `requests`
    is what it takes of its node. `shown` are our annotations that one of its volumes shows as a file. `exit_code` is
    known once all containers have ended for good, a second before the phase is. `unread` says why no more than its
    metadata, node and phase could be read; empty where all could.
    """

    metadata: Metadata
    owner: Owner | None
    hostname: str = ""
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
    conditions: tuple[Condition, ...] = ()
    shown: frozenset[str] = frozenset()
    exit_code: int | None = None
    unread: str = ""

    @property
    def key(self) -> ObjectKey:
        """Namespace and name."""
        return self.metadata.key

    @property
    def host(self) -> Host:
        """The host that it is to its job. Its replacement is the same host."""
        return Host(self.hostname or self.metadata.name)

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
    """One node. `ready` is what the cluster says; `annotations` are our own, `conditions` all that it has.

    `unread` is as a pod's.
    """

    metadata: Metadata
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    allocatable: Resources = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    provider_id: str = ""
    unread: str = ""

    @property
    def name(self) -> str:
        """The name by which pods refer to it."""
        return self.metadata.name

    @property
    def ready(self) -> bool:
        """Whether its kubelet is ready for pods."""
        return any(each.type == "Ready" and each.status == "True" for each in self.conditions)

    @property
    def open(self) -> bool:
        """Whether pods may start on it and stay there; the taint of a removal holds off none that tolerate any."""
        return self.ready and not self.cordoned and _REMOVAL.isdisjoint(taint.key for taint in self.taints)
