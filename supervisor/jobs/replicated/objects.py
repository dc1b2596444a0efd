"""Jobs that consist of replicas by role, and the reader of those that have a run policy."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import chain, repeat
from typing import TypeVar

import msgspec

from servicekit.kubernetes.client import Resource
from supervisor.cluster.annotations import OURS, SUSPENDED_BY, ours
from supervisor.cluster.podspec import Body
from supervisor.domain.capacity import Demand, Pods, ResourceRequest
from supervisor.jobs.kind import CommonJobSpec, JobObject, Right
from supervisor.jobs.manifest import JobBody, RoleReplicas, RunPolicy, StartedStatus, decoded
from supervisor.jobs.observation import refusal


class JobCondition(StrEnum):
    """The conditions of a job that the supervisor reads."""

    RUNNING = "Running"
    """The launcher and all workers ran once since the last start; it stays true whatever ends later."""
    SUSPENDED = "Suspended"
    """The controller says that the job is suspended, which it does for a moment after a resume, too."""
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaShape:
    """The fields and labels with which a kind writes its roles.

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
class ReplicatedSpec(CommonJobSpec):
    """The sizes, templates and policies that a job asks for; `replicas` is the sum of its sizes.

    Attributes:
        sizes: The present number of pods of each role.
        scaled: The role whose number may change.
        parts: The number of pods of each part of a role, for roles that consist of equal, numbered parts.
        restart_policies: Those of the roles.
        commands: The command line of each container as one text.
        variables: The literal variables of the containers.
        elastic: The elastic policy; None without one.
        has_fixed_size: The controller accepts no other size.
        discovers_hosts: A run looks for its hosts while it runs, so that more of them are of use to it.
    """

    sizes: Mapping[str, int]
    scaled: str
    parts: Mapping[str, int] = field(default_factory=dict)
    restart_policies: frozenset[str] = frozenset()
    commands: tuple[str, ...] = ()
    variables: frozenset[tuple[str, str]] = frozenset()
    elastic: ElasticPolicy | None = None
    has_fixed_size: bool = False
    discovers_hosts: bool = True

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedJob(JobObject):
    """One job.

    Attributes:
        conditions: Those that are true.
        started_at: When its controller first saw it, or last resumed it.
        restarts: How often its controller has made all of its pods anew; None where that is another start.
    """

    conditions: frozenset[str] = frozenset()
    started_at: datetime | None = None
    restarts: int | None = None
    spec: ReplicatedSpec | None = None

    @property
    def run_id(self) -> str:
        """The id of its run: a controller sets the time of the start anew when it resumes a job.

        Pods may run before it notes a resume. Until then it also says that the job is suspended.
        """
        if self.suspended or JobCondition.SUSPENDED in self.conditions or self.started_at is None:
            return ""
        start = self.started_at.isoformat()
        return start if self.restarts is None else f"{start}.{self.restarts}"

    @property
    def waiting_since(self) -> datetime | None:
        """When its present start began to wait for pods; None for one that begins now, as a resume is noted later.

        Where a person has resumed a job and left the supervisor's mark, the start may be unknown: Volcano notes no
        resume.
        """
        if JobCondition.SUSPENDED in self.conditions or self.annotations.get(SUSPENDED_BY) == OURS:
            return None
        return self.started_at or self.metadata.creation_timestamp


R = TypeVar("R", bound=ReplicatedJob)


def requested_resources(scaled: str, demands: Mapping[str, Demand], sizes: Mapping[str, int]) -> ResourceRequest:
    """The resources of a run with these sizes and demands of its roles. Roles that request the same are one."""
    worker = demands.get(scaled) or next(iter(demands.values()))
    others = (Pods(demand, sizes[name]) for name, demand in demands.items() if demand != worker)
    return ResourceRequest(worker=worker, others=tuple(each for each in others if each.count))


def full_right(resource: Resource) -> Right:
    """The right to follow and to change jobs of this kind."""
    return Right(
        group=resource.group,
        resources=(resource.plural,),
        verbs=("get", "list", "watch", "patch"),
        reason="to follow jobs, and to suspend, resize and resume them",
    )


class _RestartedReplicas(RoleReplicas, frozen=True):
    restart_policy: str = ""


class _ReplicatedBody(Body, frozen=True):
    elastic_policy: ElasticPolicy | None = None
    run_policy: RunPolicy = RunPolicy()


def read_replicated_job(data: bytes | msgspec.Raw, shape: ReplicaShape) -> ReplicatedJob:
    """Decodes a job of this shape from the API server's JSON.

    Raises:
        msgspec.MsgspecError: It is no object at all.
    """
    read = msgspec.json.decode(data, type=JobBody)
    metadata, body = read.metadata, decoded(read.spec, _ReplicatedBody)
    status = decoded(read.status, StartedStatus) or StartedStatus()
    policy = RunPolicy() if body is None else body.run_policy
    asked = None if body is None else _asked(body, read.spec, shape)
    spec, resources = asked if asked is not None else (None, None)
    return ReplicatedJob(
        metadata=metadata.identity,
        annotations=ours(metadata.annotations),
        deleted=metadata.deletion_timestamp is not None,
        elsewhere=policy.managed_by not in (None, shape.controller),
        suspended=spec is not None and bool(policy.suspend),
        conditions=frozenset(each.type for each in status.true),
        started_at=status.start_time,
        resource_request=resources,
        spec=spec,
    )


def _asked(
    body: _ReplicatedBody, data: msgspec.Raw, shape: ReplicaShape
) -> tuple[ReplicatedSpec, ResourceRequest | None] | None:
    """The spec and the resources of a job; None where they are not understood."""
    try:
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        written = msgspec.json.decode(fields[shape.replicas], type=dict[str, _RestartedReplicas])
        # A role has the name that the spec uses: its operator takes `Ps` for `PS`.
        spelled = {name.lower(): name for name in written}
        names = [spelled[role] for each in shape.roles if (role := each.lower()) in spelled]
        roles = {name: written[name] for name in names}
        containers = [container for each in roles.values() for container in each.template.containers()]
        demands = {name: each.template.demand() for name, each in roles.items()}
    except (msgspec.MsgspecError, ValueError, KeyError):
        return None
    sizes = {name: 1 if each.replicas is None else each.replicas for name, each in roles.items()}
    if not roles or any(size < 0 for size in sizes.values()):
        return None
    why = refusal(sizes.values())
    scaled = next((name for name in roles if name.lower() == shape.scaled.lower()), shape.scaled)
    spec = ReplicatedSpec(
        replicas=sum(sizes.values()),
        annotations=tuple(each.template.annotations for each in roles.values()),
        refusal=why,
        sizes=sizes,
        scaled=scaled,
        restart_policies=frozenset(each.restart_policy for each in roles.values()),
        commands=tuple(" ".join(each.words) for each in containers),
        variables=frozenset((each.name, each.value) for container in containers for each in container.env or ()),
        elastic=body.elastic_policy,
    )
    return spec, None if why else requested_resources(scaled, demands, sizes)
