"""Pods and nodes as the supervisor keeps them: what nobody here asks for is left out when an object is read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

import msgspec

from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.objects import Metadata, ObjectKey
from supervisor.cluster.annotations import opts_in
from supervisor.domain.capacity import Resources, Taint

PODS = Resource(group="", version="v1", kind="Pod", plural="pods", namespaced=True)
NODES = Resource(group="", version="v1", kind="Node", plural="nodes", namespaced=False)


class PodPhase(StrEnum):
    """Where a pod stands."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class Owner(msgspec.Struct, frozen=True, rename="camel"):
    """Whoever controls an object."""

    kind: str
    name: str
    uid: str
    api_version: str = ""
    controller: bool = False


class Condition(msgspec.Struct, frozen=True, rename="camel"):
    """A condition of the usual form."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod.

    `owner` is its controller. `labels` are those that the view was told to keep, `annotations` our own. `deleted_at`
    is when its grace ends (deletionTimestamp), None while nobody has asked for its deletion, and `grace` the seconds
    that it was given for that, or would be. `ended_at` is when its last container ended, None while one may be running.
    `requests` is what it takes of its node. `shown` are our annotations that one of its volumes shows as a file.
    `exit_code` is known once all containers have ended for good, a second before the phase is.
    `unread` says why no more than its metadata, node and phase could be read; empty where all could.
    """

    metadata: Metadata
    owner: Owner | None
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
        """Which pod it is."""
        return self.metadata.key

    @property
    def opted_in(self) -> bool:
        """An annotation gives it into our care."""
        return opts_in(self.annotations)

    @property
    def over(self) -> bool:
        """It takes nothing of its node any more."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)

    @property
    def succeeded(self) -> bool:
        """All its containers have ended well."""
        return self.phase is PodPhase.SUCCEEDED or self.exit_code == 0

    @property
    def running(self) -> bool:
        """Its containers run and nobody has asked for its end."""
        return self.phase is PodPhase.RUNNING and self.deleted_at is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node. `ready` is what the cluster says; `conditions` are all that it has. `unread` is as a pod's."""

    metadata: Metadata
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    cordoned: bool = False
    allocatable: Resources = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    provider_id: str = ""
    unread: str = ""

    @property
    def name(self) -> str:
        """As pods name it."""
        return self.metadata.name

    @property
    def ready(self) -> bool:
        """Whether it takes pods as far as its kubelet is concerned."""
        return any(each.type == "Ready" and each.status == "True" for each in self.conditions)
