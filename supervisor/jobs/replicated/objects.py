"""Jobs of replicas, and how they are read: whatever an operator takes must not stop the rest."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import chain, repeat

import msgspec

from servicekit.kubernetes.objects import Metadata
from supervisor.cluster.annotations import ours
from supervisor.cluster.podspec import Body
from supervisor.domain.capacity import Demand, Pods, ResourceRequest
from supervisor.jobs import manifest
from supervisor.jobs.manifest import PodTemplate, decoded
from supervisor.jobs.observation import refusal


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
        roles: The roles whose pods train or are trained with. Specs may spell them with any letters in upper case.
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
    """The sizes, templates and policies that a job asks for.

    Attributes:
        sizes: The present number of pods of each role.
        parts: The number of pods of each part of a role, for roles that consist of equal, numbered parts.
        refusal: Why the job is too large to be read; then nothing but its annotations is known.
        scaled: The role whose number may change.
        suspended: The operator has been told to delete all pods.
        demands: The resources of a pod of each role.
        annotations: Those of each template.
        restart_policies: Those of the roles.
        commands: The command line of each container as one text.
        variables: The literal variables of the containers.
        elastic: The elastic policy; None without one.
        has_fixed_size: The controller accepts no other size.
    """

    sizes: Mapping[str, int]
    scaled: str
    suspended: bool
    demands: Mapping[str, Demand]
    annotations: tuple[Mapping[str, str], ...]
    restart_policies: frozenset[str] = frozenset()
    commands: tuple[str, ...] = ()
    variables: frozenset[tuple[str, str]] = frozenset()
    elastic: ElasticPolicy | None = None
    has_fixed_size: bool = False
    parts: Mapping[str, int] = field(default_factory=dict)
    refusal: str = ""

    @property
    def replicas(self) -> int:
        """The number of pods of a run at present."""
        return sum(self.sizes.values())

    @property
    def others(self) -> int:
        """The number of pods of the roles whose number does not change."""
        return self.replicas - self.sizes.get(self.scaled, 0)

    def places(self, role: str, size: int, first: int = 0) -> Iterable[tuple[str, int]]:
        """The pods of a role of that size, each by its role, or the part of it, and its number there."""
        pods, indices = self.parts.get(role), range(first, size)
        if pods is None:
            return zip(repeat(role), indices)
        if first or not pods:
            return ((f"{role}-{index // pods}", index % pods) for index in indices)
        parts = enumerate(range(size, 0, -pods))
        return chain.from_iterable(zip(repeat(f"{role}-{part}"), range(min(pods, left))) for part, left in parts)

    @property
    def resource_request(self) -> ResourceRequest | None:
        """The resources of a run; None if they are unknown. Roles that request the same are one."""
        if self.refusal:
            return None
        worker = self.demands.get(self.scaled) or next(iter(self.demands.values()))
        others = (Pods(demand, self.sizes[name]) for name, demand in self.demands.items() if demand != worker)
        return ResourceRequest(worker=worker, others=tuple(each for each in others if each.count))


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
    def run_id(self) -> str:
        """The id of its run: a controller sets the time of the start anew when it resumes a job."""
        return self.noted_start

    @property
    def noted_start(self) -> str:
        """When its run began, as its controller has noted it; empty until then, and while it is suspended.

        Pods may run before it notes a resume. Until then it also says that the job is suspended.
        """
        if self.suspended or self.still_suspended or self.started_at is None:
            return ""
        return self.started_at.isoformat()

    @property
    def resource_request(self) -> ResourceRequest | None:
        """The resources of a run; None if they are unknown."""
        return None if self.spec is None else self.spec.resource_request

    def has(self, condition: Condition) -> bool:
        return condition in self.conditions


class _Replicas(Body, frozen=True):
    template: PodTemplate
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


class _Status(Body, frozen=True):
    conditions: tuple[manifest.Condition, ...] | None = None
    start_time: datetime | None = None


def read_replicated_job(data: bytes | msgspec.Raw, shape: Shape) -> ReplicatedJob:
    """Returns a job from the API server's JSON.

    Raises:
        msgspec.MsgspecError: It is no object at all.
    """
    read = msgspec.json.decode(data, type=manifest.JobBody)
    metadata, spec, status = read.metadata, decoded(read.spec, _Spec), decoded(read.status, _Status) or _Status()
    manager = None if spec is None else spec.run_policy.managed_by
    return ReplicatedJob(
        metadata=metadata.identity,
        annotations=ours(metadata.annotations),
        deleted=metadata.deletion_timestamp is not None,
        elsewhere=manager not in (None, shape.controller),
        conditions=frozenset(each.type for each in status.conditions or () if each.holds),
        started_at=status.start_time,
        spec=None if spec is None else _spec(spec, read.spec, shape),
    )


def _spec(spec: _Spec, data: msgspec.Raw, shape: Shape) -> ReplicatedSpec | None:
    try:
        roles = dict(_roles(data, shape))
        containers = [container for each in roles.values() for container in each.template.containers()]
        demands = {name: each.template.demand() for name, each in roles.items()}
    except (msgspec.MsgspecError, ValueError, KeyError):
        return None
    if not roles or any(each.count < 0 for each in roles.values()):
        return None
    sizes = {name: each.count for name, each in roles.items()}
    return ReplicatedSpec(
        sizes=sizes,
        scaled=next((name for name in roles if name.lower() == shape.scaled.lower()), shape.scaled),
        suspended=bool(spec.run_policy.suspend),
        demands=demands,
        annotations=tuple(each.template.annotations for each in roles.values()),
        restart_policies=frozenset(each.restart_policy for each in roles.values()),
        commands=tuple(" ".join(each.words) for each in containers),
        variables=frozenset((each.name, each.value) for container in containers for each in container.env or ()),
        elastic=spec.elastic_policy,
        refusal=refusal(sizes.values()),
    )


def _roles(data: msgspec.Raw, shape: Shape) -> Iterator[tuple[str, _Replicas]]:
    """The replicas of each role by its name as the spec spells it: its operator takes `Ps` for `PS`.

    Raises KeyError or MsgspecError if there are none to read.
    """
    fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    roles = msgspec.json.decode(fields[shape.replicas], type=dict[str, _Replicas])
    spelled = {name.lower(): name for name in roles}
    found = (spelled[role] for name in shape.roles if (role := name.lower()) in spelled)
    return ((name, roles[name]) for name in found)
