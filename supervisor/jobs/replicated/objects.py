"""Jobs of replicas, and how they are read: whatever an operator takes must not stop the rest."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

import msgspec

from servicekit.kubernetes.objects import Metadata
from supervisor.cluster.annotations import ours
from supervisor.cluster.podspec import Body, PodSpec
from supervisor.domain.capacity import Demand, ResourceRequest
from supervisor.jobs.manifest import ObjectMetadata


class Condition(StrEnum):
    """The conditions that are asked for here."""

    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How a kind writes its jobs.

    Attributes:
        replicas: The field of the spec with the replicas of each role.
        roles: The roles whose pods train or are trained with, as the spec names them.
        scaled: The one of them whose number may change.
        role_label: The label of a pod with its role in lower case.
        controller: The name of the operator in `runPolicy.managedBy`.
    """

    replicas: str
    roles: tuple[str, ...]
    scaled: str
    role_label: str
    controller: str


class ElasticPolicy(Body, frozen=True):
    """The bounds and the rendezvous of a job that torchrun starts."""

    min_replicas: int | None = None
    max_replicas: int | None = None
    rdzv_backend: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedSpec:
    """What a job asks for.

    Attributes:
        sizes: The present number of pods of each role.
        scaled: The role whose number may change.
        suspended: The operator has been told to delete all pods.
        demand: The resources of a pod whose number may change.
        annotations: Those of each template.
        restart_policies: Those of the roles.
        commands: The command line of each container as one text.
        variables: The literal variables of the containers.
        elastic: The elastic policy; None without one.
    """

    sizes: Mapping[str, int]
    scaled: str
    suspended: bool
    demand: Demand
    annotations: tuple[Mapping[str, str], ...]
    restart_policies: frozenset[str] = frozenset()
    commands: tuple[str, ...] = ()
    variables: frozenset[tuple[str, str]] = frozenset()
    elastic: ElasticPolicy | None = None

    @property
    def replicas(self) -> int:
        """The number of pods of a run at present."""
        return sum(self.sizes.values())

    @property
    def others(self) -> int:
        """The number of pods of the roles whose number does not change."""
        return self.replicas - self.sizes.get(self.scaled, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedJob:
    """One job; `spec` is None where it is not understood, `annotations` are our own.

    `started_at` is when the operator first saw it, or last resumed it. `elsewhere`: another controller runs it.
    """

    metadata: Metadata
    annotations: Mapping[str, str] = field(default_factory=dict)
    deleted: bool = False
    elsewhere: bool = False
    conditions: frozenset[str] = frozenset()
    started_at: datetime | None = None
    spec: ReplicatedSpec | None = None

    @property
    def suspended(self) -> bool:
        """Whether the operator has been told to delete all pods."""
        return self.spec is not None and self.spec.suspended

    @property
    def still_suspended(self) -> bool:
        """Whether the operator says that it is suspended, which it does for a moment after a resume, too."""
        return self.has(Condition.SUSPENDED)

    @property
    def resource_request(self) -> ResourceRequest | None:
        """The resources of a run; None if they are unknown."""
        return None if self.spec is None else ResourceRequest(worker=self.spec.demand)

    def has(self, condition: Condition) -> bool:
        return condition in self.conditions


class _Variable(Body, frozen=True):
    name: str
    value: str = ""


class _Container(Body, frozen=True):
    command: tuple[str, ...] | None = ()
    args: tuple[str, ...] | None = ()
    env: tuple[_Variable, ...] | None = ()

    @property
    def text(self) -> str:
        return " ".join((*(self.command or ()), *(self.args or ())))


class _Pod(Body, frozen=True):
    containers: tuple[_Container, ...]


class _TemplateMetadata(Body, frozen=True):
    annotations: dict[str, str] | None = None


class _Template(Body, frozen=True):
    spec: msgspec.Raw
    metadata: _TemplateMetadata = _TemplateMetadata()


class _Replicas(Body, frozen=True):
    template: _Template
    replicas: int | None = None
    restart_policy: str = ""

    @property
    def count(self) -> int:
        return 1 if self.replicas is None else self.replicas


class _RunPolicy(Body, frozen=True):
    suspend: bool | None = None
    managed_by: str | None = None


class _Spec(Body, frozen=True):
    elastic_policy: ElasticPolicy | None = None
    run_policy: _RunPolicy = _RunPolicy()


class _Condition(Body, frozen=True):
    type: str
    status: str


class _Status(Body, frozen=True):
    conditions: tuple[_Condition, ...] | None = None
    start_time: datetime | None = None


class _Job(Body, frozen=True):
    metadata: ObjectMetadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


def read_replicated_job(data: bytes | msgspec.Raw, shape: Shape) -> ReplicatedJob:
    """Returns a job from the API server's JSON.

    Raises:
        msgspec.MsgspecError: It is no object at all.
    """
    read = msgspec.json.decode(data, type=_Job)
    metadata, spec, status = read.metadata, _decoded(read.spec), _status(read.status)
    manager = None if spec is None else spec.run_policy.managed_by
    return ReplicatedJob(
        metadata=metadata.identity,
        annotations=ours(metadata.annotations),
        deleted=metadata.deletion_timestamp is not None,
        elsewhere=manager not in (None, shape.controller),
        conditions=frozenset(each.type for each in status.conditions or () if each.status == "True"),
        started_at=status.start_time,
        spec=None if spec is None else _spec(spec, read.spec, shape),
    )


def _decoded(data: msgspec.Raw) -> _Spec | None:
    try:
        return msgspec.json.decode(data, type=_Spec)
    except msgspec.MsgspecError:
        return None


def _status(data: msgspec.Raw) -> _Status:
    try:
        return msgspec.json.decode(data, type=_Status)
    except msgspec.MsgspecError:
        return _Status()


def _spec(spec: _Spec, data: msgspec.Raw, shape: Shape) -> ReplicatedSpec | None:
    try:
        roles = dict(_roles(data, shape))
        pods = [msgspec.json.decode(each.template.spec, type=_Pod) for each in roles.values()]
        scaled = roles.get(shape.scaled) or next(iter(roles.values()))
        demand = msgspec.json.decode(scaled.template.spec, type=PodSpec).demand()
    except (msgspec.MsgspecError, ValueError, KeyError, StopIteration):
        return None
    containers = [container for pod in pods for container in pod.containers]
    return ReplicatedSpec(
        sizes={name: each.count for name, each in roles.items()},
        scaled=shape.scaled,
        suspended=bool(spec.run_policy.suspend),
        demand=demand,
        annotations=tuple(ours(each.template.metadata.annotations) for each in roles.values()),
        restart_policies=frozenset(each.restart_policy for each in roles.values()),
        commands=tuple(each.text for each in containers),
        variables=frozenset((each.name, each.value) for container in containers for each in container.env or ()),
        elastic=spec.elastic_policy,
    )


def _roles(data: msgspec.Raw, shape: Shape) -> Iterator[tuple[str, _Replicas]]:
    """The replicas of each role. Raises KeyError or MsgspecError if there are none to read."""
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    roles = msgspec.json.decode(fields[shape.replicas], type=dict[str, _Replicas])
    return ((name, roles[name]) for name in shape.roles if name in roles)
