"""What the stand-in reads of a cluster: jobs, scalings, pods."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.objects import Metadata, ObjectKey
from simulator.et_operator.names import (
    GROUP,
    INDEX_LABEL,
    JOB_LABEL,
    ROLE_LABEL,
    SCALE_OUT_LABEL,
    SUSPEND_ANNOTATION,
    VERSION,
    Role,
    ScalePhase,
    Step,
)

_DEFAULT_BACKOFF_LIMIT = 6

_kind = partial(Resource, group=GROUP, version=VERSION, namespaced=True)
TRAINING_JOBS = _kind(kind="TrainingJob", plural="trainingjobs")
SCALE_INS = _kind(kind="ScaleIn", plural="scaleins")
SCALE_OUTS = _kind(kind="ScaleOut", plural="scaleouts")
PODS = Resource(group="", version="v1", kind="Pod", plural="pods", namespaced=True)
CONFIG_MAPS = Resource(group="", version="v1", kind="ConfigMap", plural="configmaps", namespaced=True)


class Meta(Metadata, frozen=True, rename="camel"):
    """With what people and controllers hang on an object."""

    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    deletion_timestamp: str | None = None
    owner_references: tuple[dict[str, Any], ...] = ()


class Condition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One of a job's conditions."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    last_update_time: str | None = None


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """Of a TrainingJob; what is None is not there."""

    phase: str = ""
    conditions: list[Condition] | None = None
    target_workers: list[str] | None = None
    current_workers: list[str] | None = None
    restart_count: int | None = None
    start_time: str | None = None
    replica_statuses: dict[str, dict[str, int]] | None = None
    current_scaler: str | None = None
    """The ScaleOut that is worked on, as `ScaleOut:namespace/name`; a suspension leaves it there."""

    def has(self, step: Step) -> bool:
        """Whether that was done."""
        return any(each.type == step and each.status == "True" for each in self.conditions or ())


class Replicas(msgspec.Struct, frozen=True, rename="camel"):
    """One of a job's two kinds of pods. Bounds, minReplicas and maxReplicas, are read by nobody here."""

    replicas: int = 1
    restart_policy: str = "Never"
    template: dict[str, Any] = {}


class ReplicaSpecs(msgspec.Struct, frozen=True):
    """Both; the keys are in lower case."""

    launcher: Replicas
    worker: Replicas


class JobSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Of a TrainingJob."""

    et_replica_specs: ReplicaSpecs
    restart_policy: str = "Never"
    backoff_limit: int = _DEFAULT_BACKOFF_LIMIT
    clean_pod_policy: str = "None"
    slots_per_worker: int = 1


class TrainingJob(msgspec.Struct, frozen=True):
    """A job."""

    metadata: Meta
    spec: JobSpec
    status: Status = Status()

    @property
    def suspension_asked(self) -> bool:
        """Whether it has the annotation."""
        return self.metadata.annotations.get(SUSPEND_ANNOTATION) == "true"

    @property
    def restarts_left(self) -> bool:
        """Whether a failure starts everything again."""
        return self.spec.restart_policy == "OnFailure" and (self.status.restart_count or 0) < self.spec.backoff_limit


class Selector(msgspec.Struct, frozen=True):
    """Which job is scaled."""

    name: str = ""


class ToDelete(msgspec.Struct, frozen=True, rename="camel"):
    """Which workers: by name, or so many."""

    pod_names: list[str] = []
    count: int = 0


class ToAdd(msgspec.Struct, frozen=True):
    """How many workers."""

    count: int = 0


class ScaleSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Of a ScaleIn or a ScaleOut."""

    selector: Selector = Selector()
    to_delete: ToDelete | None = None
    to_add: ToAdd | None = None
    script: str = ""
    timeout: int = 60


class ScaleStatus(msgspec.Struct, frozen=True, rename="camel"):
    """How far it is, since when (Unix seconds), and with which workers."""

    phase: str = ""
    pods: list[str] = []
    add_pods: list[str] = []
    start_time: float | None = None


class Scale(msgspec.Struct, frozen=True):
    """A ScaleIn or a ScaleOut; the latter has `to_add`."""

    metadata: Meta
    spec: ScaleSpec = ScaleSpec()
    status: ScaleStatus = ScaleStatus()

    @property
    def job(self) -> ObjectKey:
        """Which job."""
        return ObjectKey(self.metadata.namespace, self.spec.selector.name)

    @property
    def over(self) -> bool:
        """Whether it is done with, one way or the other."""
        return self.status.phase in (ScalePhase.SUCCEEDED, ScalePhase.FAILED)

    def is_for(self, job: TrainingJob) -> bool:
        """By its owner; one without an owner is given to the job that it names."""
        owners = self.metadata.owner_references
        return any(each.get("uid") == job.metadata.uid for each in owners) if owners else self.job == job.metadata.key


class PodStatus(msgspec.Struct, frozen=True):
    """How a pod is."""

    phase: str = ""


class Pod(msgspec.Struct, frozen=True):
    """One of a job's pods."""

    metadata: Meta
    status: PodStatus = PodStatus()

    @property
    def name(self) -> str:
        """Its name, which is that of a host."""
        return self.metadata.name

    @property
    def job(self) -> ObjectKey:
        """Whose it is, by its labels."""
        return ObjectKey(self.metadata.namespace, self.metadata.labels.get(JOB_LABEL, ""))

    @property
    def is_launcher(self) -> bool:
        """Whether it is the launcher, and not a worker."""
        return self.metadata.labels.get(ROLE_LABEL) == Role.LAUNCHER

    @property
    def scale_out(self) -> str:
        """The ScaleOut that it was made for."""
        return self.metadata.labels.get(SCALE_OUT_LABEL, "")

    @property
    def index(self) -> int:
        """Of a worker."""
        return int(self.metadata.labels.get(INDEX_LABEL, "-1"))

    @property
    def runs(self) -> bool:
        """Whether it runs, as far as is known."""
        return self.status.phase == "Running" and self.metadata.deletion_timestamp is None

    @property
    def ended(self) -> bool:
        """Whether it has come to its end."""
        return self.status.phase in ("Succeeded", "Failed")


class ConfigMap(msgspec.Struct, frozen=True):
    """A ConfigMap, of which only its being there counts."""

    metadata: Metadata


def owner(job: TrainingJob) -> Mapping[str, object]:
    """What an object of the job says of it."""
    return {
        "apiVersion": TRAINING_JOBS.api_version,
        "kind": TRAINING_JOBS.kind,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
