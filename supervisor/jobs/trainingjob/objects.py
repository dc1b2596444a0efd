"""Decodes TrainingJobs. It accepts whatever the operator accepts, so that one job cannot block the others."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

import msgspec

from servicekit.bounds import MAX_LISTED_WORKERS, MAX_SLOTS, counted, nearest_seconds, whole
from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.objects import Metadata
from supervisor.cluster.annotations import PREFIX, ours
from supervisor.cluster.podspec import Body, amounts_of
from supervisor.domain.capacity import Demand, ResourceRequest
from supervisor.jobs import manifest
from supervisor.jobs.kind import Role
from supervisor.jobs.manifest import PodTemplate, decoded
from supervisor.jobs.observation import refusal

TRAINING_JOBS = Resource(
    group="kai.alibabacloud.com", version="v1alpha1", kind="TrainingJob", plural="trainingjobs", namespaced=True
)
KIND = "trainingjob"

SUSPENDED = f"{PREFIX}job-suspended"
"""The annotation that makes the operator delete a job's pods, and start it again when it is removed."""
OWN_ANNOTATIONS = frozenset({SUSPENDED})
SCALE_OUT = "scaleout-name"
"""The label of pods that the operator made for a ScaleOut."""

ROLE = "training-job-role"
_LAUNCHED = "LauncherCreated"

SIZE = "workers"
"""The variable from which a launcher's command computes how many processes it starts."""

_COMPUTED = re.compile(r"(?<![\w-])(?:-np|--num-proc)[ =]+[^-]*?\$\{?workers\b")
_DEFAULT_BACKOFF_LIMIT = 6

_HOSTFILE_WRITER = amounts_of({"cpu": "100m", "memory": "512Mi", "ephemeral-storage": "5Gi"})
"""The requests of an init container that the operator adds to launchers; they must be free for a moment."""


def role(labels: Mapping[str, str]) -> Role | None:
    """The role of a pod by the operator's label."""
    found = labels.get(ROLE)
    return Role(found) if found in (Role.LAUNCHER, Role.WORKER) else None


class JobPhase(StrEnum):
    """The phase of a job as the operator reports it."""

    NEW = ""
    CREATED = "Created"
    RUNNING = "Running"
    SCALING = "Scaling"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """An environment variable of a container: its value and its JSON pointer in the job."""

    value: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """The pod template of one role; `container` is its first container's name, `command` its joined commands."""

    demand: Demand
    annotations: Mapping[str, str] = field(default_factory=dict)
    container: str = ""
    command: str = ""
    variables: Mapping[str, Variable] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJobSpec:
    """The spec of a job; `slots` is the number per worker."""

    replicas: int
    least: int | None
    most: int | None
    slots: int
    worker: Template
    launcher: Template
    restarts: bool
    backoff_limit: int

    @property
    def refusal(self) -> str:
        """Why the job is too large; empty for one within the bounds."""
        return refusal([self.replicas])

    @property
    def resource_request(self) -> ResourceRequest | None:
        """The resource request of a run; None if it is too much."""
        if self.refusal:
            return None
        demand = self.launcher.demand
        names = demand.requests.keys() | _HOSTFILE_WRITER.keys()
        requests = {name: max(demand.requests.get(name, 0), _HOSTFILE_WRITER.get(name, 0)) for name in names}
        return ResourceRequest(worker=self.worker.demand, launcher=replace(demand, requests=requests))

    @property
    def sized_by_variable(self) -> bool:
        """Whether changing a variable of the launcher is enough to resize the job."""
        size = self.launcher.variables.get(SIZE)
        computed = _COMPUTED.search(self.launcher.command) is not None
        return computed and size is not None and size.value == str(self.replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """One job; `spec` is None where its spec is not understood, `annotations` are our own.

    `targets` are the workers that the operator wants to be there, `current` those that ran when it last looked.
    `launched`: the operator has made the launcher of this start. `moved_at` is when a condition last became true.
    """

    metadata: Metadata
    annotations: Mapping[str, str] = field(default_factory=dict)
    deleted: bool = False
    phase: JobPhase = JobPhase.NEW
    restarts: int = 0
    launched: bool = False
    moved_at: datetime | None = None
    targets: frozenset[str] = frozenset()
    current: frozenset[str] = frozenset()
    spec: TrainingJobSpec | None = None

    @property
    def suspended(self) -> bool:
        """Whether the annotation asks the operator to delete all its pods."""
        return self.annotations.get(SUSPENDED) == "true"

    @property
    def has_launcher(self) -> bool:
        """Whether the operator believes that there is a launcher; then it creates none, even if the pod is gone."""
        if self.suspended:
            return False
        return self.phase in (JobPhase.RUNNING, JobPhase.SCALING) or (self.phase is JobPhase.CREATED and self.launched)


class _Replicas(Body, frozen=True):
    template: PodTemplate
    replicas: int = 1
    min_replicas: int | None = None
    max_replicas: int | None = None


class _ReplicaSpecs(Body, frozen=True):
    launcher: _Replicas
    worker: _Replicas


class _Spec(Body, frozen=True):
    et_replica_specs: _ReplicaSpecs
    restart_policy: str = "Never"
    backoff_limit: int | None = None
    slots_per_worker: int | None = None


class _Status(Body, frozen=True):
    phase: str = ""
    conditions: tuple[manifest.Condition, ...] | None = None
    restart_count: int | None = None
    target_workers: frozenset[str] | None = None
    current_workers: frozenset[str] | None = None


def read_training_job(data: bytes | msgspec.Raw) -> TrainingJob:
    """A job from the API server's JSON.

    Raises:
        msgspec.MsgspecError: It is no object at all.
    """
    read = msgspec.json.decode(data, type=manifest.JobBody)
    metadata, status = read.metadata, decoded(read.status, _Status) or _Status(phase=JobPhase.UNKNOWN)
    conditions = [each for each in status.conditions or () if each.holds]
    return TrainingJob(
        metadata=metadata.identity,
        annotations=ours(metadata.annotations),
        deleted=metadata.deletion_timestamp is not None,
        phase=JobPhase(status.phase) if status.phase in list(JobPhase) else JobPhase.UNKNOWN,
        restarts=counted(status.restart_count),
        launched=any(each.type == _LAUNCHED for each in conditions),
        moved_at=max(
            (each.last_transition_time for each in conditions if each.last_transition_time),
            key=nearest_seconds,
            default=None,
        ),
        targets=status.target_workers or frozenset(),
        current=status.current_workers or frozenset(),
        spec=_job_spec(read.spec),
    )


def _job_spec(data: msgspec.Raw) -> TrainingJobSpec | None:
    try:
        spec = msgspec.json.decode(data, type=_Spec)
        worker, launcher = spec.et_replica_specs.worker, spec.et_replica_specs.launcher
        return TrainingJobSpec(
            replicas=worker.replicas,
            least=_number(worker.min_replicas, worker, "minWorkers"),
            most=_number(worker.max_replicas, worker, "maxWorkers"),
            slots=min(max(spec.slots_per_worker or 1, 1), MAX_SLOTS),
            worker=_template(worker.template, "worker"),
            launcher=_template(launcher.template, "launcher"),
            restarts=spec.restart_policy == "OnFailure",
            backoff_limit=_DEFAULT_BACKOFF_LIMIT if spec.backoff_limit is None else spec.backoff_limit,
        )
    except (msgspec.MsgspecError, ValueError):
        return None


def _template(template: PodTemplate, role: str) -> Template:
    containers = template.containers()
    path = f"/spec/etReplicaSpecs/{role}/template/spec/containers"
    return Template(
        demand=template.demand(),
        annotations=template.annotations,
        container=containers[0].name if containers else "",
        command=" ".join(word for each in containers for word in each.words),
        variables={
            each.name: Variable(value=each.value, path=f"{path}/{number}/env/{place}/value")
            for number, container in enumerate(containers)
            for place, each in enumerate(container.env or ())
        },
    )


def _number(written: int | None, replicas: _Replicas, name: str) -> int | None:
    """A bound of the spec, else what the environment says, which is where Arena writes it as well."""
    if written is not None:
        return written
    for container in replicas.template.containers():
        for each in container.env or ():
            if each.name == name and (found := whole(each.value, MAX_LISTED_WORKERS)) is not None:
                return found
    return None
