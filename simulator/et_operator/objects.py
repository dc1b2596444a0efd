"""The parts of jobs, scalings and pods that the stand-in reads."""

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
    ReconcileStep,
    ScalePhase,
    TrainingJobRole,
)

_DEFAULT_BACKOFF_LIMIT = 6

_kind = partial(Resource, group=GROUP, version=VERSION, namespaced=True)
TRAINING_JOBS = _kind(kind="TrainingJob", plural="trainingjobs")
SCALE_INS = _kind(kind="ScaleIn", plural="scaleins")
SCALE_OUTS = _kind(kind="ScaleOut", plural="scaleouts")
PODS = Resource(group="", version="v1", kind="Pod", plural="pods", namespaced=True)
CONFIG_MAPS = Resource(group="", version="v1", kind="ConfigMap", plural="configmaps", namespaced=True)


class Meta(Metadata, frozen=True, rename="camel"):
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    deletion_timestamp: str | None = None
    owner_references: tuple[dict[str, Any], ...] = ()


class TrainingJobCondition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    last_update_time: str | None = None


class TrainingJobStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The status of a TrainingJob. None means that a field is missing."""

    phase: str = ""
    conditions: list[TrainingJobCondition] | None = None
    target_workers: list[str] | None = None
    current_workers: list[str] | None = None
    restart_count: int | None = None
    start_time: str | None = None
    replica_statuses: dict[str, dict[str, int]] | None = None
    current_scaler: str | None = None
    """The ScaleOut in progress, as `ScaleOut:namespace/name`. A suspension leaves it there."""

    def has(self, step: ReconcileStep) -> bool:
        """Whether a step was done."""
        return any(one.type == step and one.status == "True" for one in self.conditions or ())


class TrainingJobReplicas(msgspec.Struct, frozen=True, rename="camel"):
    """One of a job's two kinds of pods. The operator never reads minReplicas and maxReplicas."""

    replicas: int = 1
    restart_policy: str = "Never"
    template: dict[str, Any] = {}


class ReplicaSpecs(msgspec.Struct, frozen=True):
    """Both kinds. The keys are in lower case."""

    launcher: TrainingJobReplicas
    worker: TrainingJobReplicas


class JobSpec(msgspec.Struct, frozen=True, rename="camel"):
    et_replica_specs: ReplicaSpecs
    restart_policy: str = "Never"
    backoff_limit: int = _DEFAULT_BACKOFF_LIMIT
    clean_pod_policy: str = "None"
    slots_per_worker: int = 1


class OperatedTrainingJob(msgspec.Struct, frozen=True):
    metadata: Meta
    spec: JobSpec
    status: TrainingJobStatus = TrainingJobStatus()

    @property
    def suspension_asked(self) -> bool:
        return self.metadata.annotations.get(SUSPEND_ANNOTATION) == "true"

    @property
    def restarts_left(self) -> bool:
        """Whether a failure restarts everything."""
        return self.spec.restart_policy == "OnFailure" and (self.status.restart_count or 0) < self.spec.backoff_limit


class Selector(msgspec.Struct, frozen=True):
    name: str = ""


class ToDelete(msgspec.Struct, frozen=True, rename="camel"):
    """The workers to delete, by name or by number."""

    pod_names: list[str] = []
    count: int = 0


class ToAdd(msgspec.Struct, frozen=True):
    count: int = 0


class ScaleSpec(msgspec.Struct, frozen=True, rename="camel"):
    selector: Selector = Selector()
    to_delete: ToDelete | None = None
    to_add: ToAdd | None = None
    script: str = ""
    timeout: int = 60


class ScaleStatus(msgspec.Struct, frozen=True, rename="camel"):
    """Progress since `start_time` (Unix seconds), and the workers concerned."""

    phase: str = ""
    pods: list[str] = []
    add_pods: list[str] = []
    start_time: float | None = None


class Scale(msgspec.Struct, frozen=True):
    """A ScaleIn, or a ScaleOut if it has `to_add`."""

    metadata: Meta
    spec: ScaleSpec = ScaleSpec()
    status: ScaleStatus = ScaleStatus()

    @property
    def job(self) -> ObjectKey:
        return ObjectKey(self.metadata.namespace, self.spec.selector.name)

    @property
    def over(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.status.phase in (ScalePhase.SUCCEEDED, ScalePhase.FAILED)

    def is_for(self, job: OperatedTrainingJob) -> bool:
        """Whether it is for this job, by its owner; without an owner, by the job's name."""
        owners = self.metadata.owner_references
        return any(one.get("uid") == job.metadata.uid for one in owners) if owners else self.job == job.metadata.key


class PodStatus(msgspec.Struct, frozen=True):
    phase: str = ""


class OperatorPod(msgspec.Struct, frozen=True):
    metadata: Meta
    status: PodStatus = PodStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def job(self) -> ObjectKey:
        """The job in its labels."""
        return ObjectKey(self.metadata.namespace, self.metadata.labels.get(JOB_LABEL, ""))

    @property
    def is_launcher(self) -> bool:
        return self.metadata.labels.get(ROLE_LABEL) == TrainingJobRole.LAUNCHER

    @property
    def scale_out(self) -> str:
        """The ScaleOut for which it was created."""
        return self.metadata.labels.get(SCALE_OUT_LABEL, "")

    @property
    def index(self) -> int:
        """The worker's number."""
        return int(self.metadata.labels.get(INDEX_LABEL, "-1"))

    @property
    def runs(self) -> bool:
        return self.status.phase == "Running" and self.metadata.deletion_timestamp is None

    @property
    def ended(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")


class OperatorConfigMap(msgspec.Struct, frozen=True):
    metadata: Metadata


def owner(job: OperatedTrainingJob) -> Mapping[str, object]:
    """Return the owner reference of the job's objects."""
    return {
        "apiVersion": TRAINING_JOBS.api_version,
        "kind": TRAINING_JOBS.kind,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
