"""The resources of the group `kai.alibabacloud.com` and the objects that belong to a job, as far as they are read.

Names, labels and phases are those of et-operator, because Arena and users' scripts know them.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any

import msgspec

from servicekit.bounds import MAX_COUNT, MAX_HOSTS, MAX_SLOTS, whole
from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.objects import OwnedMetadata
from servicekit.spot import PodCondition, PodReclaim, PodState, classify, grace_of

GROUP = "kai.alibabacloud.com"
VERSION = "v1alpha1"

_kind = partial(Resource, group=GROUP, version=VERSION, namespaced=True)
TRAINING_JOBS = _kind(kind="TrainingJob", plural="trainingjobs")
SCALE_INS = _kind(kind="ScaleIn", plural="scaleins")
SCALE_OUTS = _kind(kind="ScaleOut", plural="scaleouts")

_core = partial(Resource, group="", version="v1", namespaced=True)
PODS = _core(kind="Pod", plural="pods")
SERVICES = _core(kind="Service", plural="services")
CONFIG_MAPS = _core(kind="ConfigMap", plural="configmaps")
SECRETS = _core(kind="Secret", plural="secrets")

GROUP_LABEL = "group-name"
JOB_LABEL = "training-job-name"
ROLE_LABEL = "training-job-role"
INDEX_LABEL = "replica-index"
SCALE_OUT_LABEL = "scaleout-name"
RUN_LABEL = f"{GROUP}/run"
"""The number of the run that a pod belongs to. Pods of et-operator have none, and belong to run 0."""

HOSTS_ANNOTATION = f"{GROUP}/hostfile"
"""On the launcher's pod: the list of hosts, which a volume of the pod shows as a file within a second."""

SUSPEND_ANNOTATION = "job-supervisor.kube-ai.io/job-suspended"

KEYS_ANNOTATION = "arena.kubeflow.org/ssh-secret"
"""The Secret with the ssh keys of a job, in its namespace (`arena submit etjob --ssh-secret`)."""

_GPU = "nvidia.com/gpu"
"""The resource of which Arena asks as many for each worker as the job has processes there."""

LAUNCHER, WORKER = "launcher", "worker"

_MAX_TIMEOUT_SECONDS = 86_400
_DEFAULT_TIMEOUT_SECONDS = 60
_MAX_SCRIPT_SECONDS = 600
"""Nothing else is done for a job while a script of its scalings runs."""
_DEFAULT_BACKOFF_LIMIT = 6


class Phase(StrEnum):
    """The phase of a TrainingJob."""

    NEW = ""
    CREATED = "Created"
    RUNNING = "Running"
    SCALING = "Scaling"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"


class ScalePhase(StrEnum):
    """The phase of a ScaleIn or ScaleOut."""

    NEW = ""
    CREATED = "Created"
    SCALING = "Scaling"
    SUCCEEDED = "ScaleSucceeded"
    FAILED = "ScaleFailed"


class RestartPolicy(StrEnum):
    """Whether what has failed is started again. A reclaim is no failure."""

    NEVER = "Never"
    ON_FAILURE = "OnFailure"
    ALWAYS = "Always"
    EXIT_CODE = "ExitCode"


class CleanPodPolicy(StrEnum):
    """The pods that are deleted when a job has ended."""

    NONE = "None"
    RUNNING = "Running"
    ALL = "All"


class Meta(OwnedMetadata, frozen=True, rename="camel"):
    """Metadata with labels, annotations and the request for the object's deletion."""

    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    deletion_timestamp: datetime | None = None
    deletion_grace_period_seconds: int | None = None

    def is_controlled_by(self, uid: str) -> bool:
        """Whether the object with that uid controls this one."""
        return any(owner.uid == uid and owner.controller for owner in self.owner_references)


class Replicas(msgspec.Struct, frozen=True, rename="camel"):
    """The launcher or the workers of a job."""

    replicas: int | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    restart_policy: str | None = None
    template: Mapping[str, Any] = {}


class _ReplicaSpecs(msgspec.Struct, frozen=True):
    launcher: Replicas
    worker: Replicas


class JobSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The spec of a TrainingJob."""

    et_replica_specs: _ReplicaSpecs
    restart_policy: str | None = None
    backoff_limit: int | None = None
    clean_pod_policy: str | None = None
    slots_per_worker: int | None = None
    suspend: bool = False


class Condition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A condition in the status of a TrainingJob."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_update_time: str = ""
    last_transition_time: str = ""


class JobStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The status of a TrainingJob.

    Attributes:
        target_workers: The workers that the job should have now, in the order of their numbers; None before it starts.
        current_workers: Those that run.
        current_scaler: The ScaleIn or ScaleOut in progress, such as `ScaleOut:namespace/name`.
        restart_count: The restarts that count against the back-off limit.
        run: The number of the present run; pods of earlier runs are deleted.
        next_index: The number that the next new worker of this run gets. A number is never used twice in a run, because
            Horovod never takes a host back that it has lost.
        observed_replicas: The `replicas` of the spec that `target_workers` follows.
        hosts_changed_at: When the list of hosts changed last (Unix seconds).
        disrupted_at: When a pod of this run was lost last without having failed (Unix seconds).
    """

    phase: str = ""
    conditions: list[Condition] | None = None
    target_workers: list[str] | None = None
    current_workers: list[str] | None = None
    current_scaler: str | None = None
    restart_count: int | None = None
    replica_statuses: Mapping[str, Mapping[str, int]] | None = None
    start_time: str | None = None
    completion_time: str | None = None
    run: int | None = None
    next_index: int | None = None
    observed_replicas: int | None = None
    hosts_changed_at: float | None = None
    disrupted_at: float | None = None


class TrainingJob(msgspec.Struct, frozen=True):
    """A TrainingJob. The properties read its numbers within bounds: a tenant can write any."""

    metadata: Meta
    spec: JobSpec
    status: JobStatus = JobStatus()

    @property
    def suspended(self) -> bool:
        """Whether its spec or the annotation asks for its suspension."""
        return self.spec.suspend or self.metadata.annotations.get(SUSPEND_ANNOTATION) == "true"

    @property
    def replicas(self) -> int:
        """The number of workers that the spec asks for."""
        asked = self.spec.et_replica_specs.worker.replicas
        return min(max(1 if asked is None else asked, 0), MAX_HOSTS)

    @property
    def min_replicas(self) -> int:
        """The fewest workers that a ScaleIn may leave."""
        return min(max(self.spec.et_replica_specs.worker.min_replicas or 1, 1), MAX_HOSTS)

    @property
    def max_replicas(self) -> int:
        """The most workers that a ScaleOut may reach."""
        return min(max(self.spec.et_replica_specs.worker.max_replicas or MAX_HOSTS, self.replicas), MAX_HOSTS)

    @property
    def slots(self) -> int:
        """The processes on each worker: as the spec says, or else one for each of its GPUs."""
        asked = self.spec.slots_per_worker
        return min(max(_gpus(self.spec.et_replica_specs.worker.template) if asked is None else asked, 1), MAX_SLOTS)

    @property
    def restarts_left(self) -> bool:
        """Whether another failure of the launcher restarts the job."""
        limit = _DEFAULT_BACKOFF_LIMIT if self.spec.backoff_limit is None else self.spec.backoff_limit
        policy = self.spec.restart_policy
        return policy in (RestartPolicy.ON_FAILURE, RestartPolicy.ALWAYS) and self.restarts < limit

    @property
    def restarts(self) -> int:
        """The counted restarts so far."""
        return min(max(self.status.restart_count or 0, 0), MAX_COUNT)


class _Selector(msgspec.Struct, frozen=True):
    name: str = ""


class ToDelete(msgspec.Struct, frozen=True, rename="camel"):
    """The workers that a ScaleIn removes: by name or, without names, that many with the highest numbers."""

    count: int = 0
    pod_names: list[str] = []


class _ToAdd(msgspec.Struct, frozen=True):
    count: int = 0


class ScriptVariable(msgspec.Struct, frozen=True):
    """A variable for the script of a scaling."""

    name: str = ""
    value: str = ""


class ScaleSpec(msgspec.Struct, frozen=True, rename="camel"):
    """The spec of a ScaleIn or ScaleOut; its script is a file in the launcher, perhaps with arguments."""

    selector: _Selector = _Selector()
    to_delete: ToDelete | None = None
    to_add: _ToAdd | None = None
    timeout: int | None = None
    script: str = ""
    env: list[ScriptVariable] = []


class ScaleStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The progress of a ScaleIn or ScaleOut.

    Attributes:
        to_delete_pods: The workers that a ScaleIn removes.
        add_pods: The workers that a ScaleOut adds.
        started_at: Unix seconds.
    """

    phase: str = ""
    message: str = ""
    to_delete_pods: list[str] = []
    add_pods: list[str] = []
    started_at: float | None = None


class Scale(msgspec.Struct, frozen=True):
    """A ScaleIn or a ScaleOut."""

    metadata: Meta
    spec: ScaleSpec = ScaleSpec()
    status: ScaleStatus = ScaleStatus()

    @property
    def over(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.status.phase in (ScalePhase.SUCCEEDED, ScalePhase.FAILED)

    @property
    def begun(self) -> bool:
        """Whether its workers have been chosen."""
        return self.status.phase == ScalePhase.SCALING

    @property
    def timeout_seconds(self) -> int:
        """How long a ScaleOut may wait for its workers."""
        asked = self.spec.timeout
        return min(max(_DEFAULT_TIMEOUT_SECONDS if asked is None else asked, 1), _MAX_TIMEOUT_SECONDS)

    @property
    def script_seconds(self) -> int:
        """How long its script may run."""
        return min(self.timeout_seconds, _MAX_SCRIPT_SECONDS)


class _Terminated(msgspec.Struct, frozen=True, rename="camel"):
    finished_at: datetime | None = None


class _ContainerState(msgspec.Struct, frozen=True):
    terminated: _Terminated | None = None


class _ContainerStatus(msgspec.Struct, frozen=True):
    state: _ContainerState = _ContainerState()


class _PodCondition(msgspec.Struct, frozen=True, rename="camel"):
    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class _PodStatus(msgspec.Struct, frozen=True, rename="camel"):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[_PodCondition] = []
    container_statuses: list[_ContainerStatus] = []


class Pod(msgspec.Struct, frozen=True):
    """A pod of a job."""

    metadata: Meta
    status: _PodStatus = _PodStatus()

    @property
    def name(self) -> str:
        """Its name, which is also the name of its host."""
        return self.metadata.name

    @property
    def is_launcher(self) -> bool:
        """Whether it is the launcher of its job."""
        return self.metadata.labels.get(ROLE_LABEL) == LAUNCHER

    @property
    def run(self) -> int:
        """The number of its run."""
        return whole(self.metadata.labels.get(RUN_LABEL), MAX_COUNT) or 0

    @property
    def deleting(self) -> bool:
        """Whether somebody has asked for its deletion."""
        return self.metadata.deletion_timestamp is not None

    @property
    def running(self) -> bool:
        """Whether its containers run and nobody has asked for its deletion."""
        return self.status.phase == "Running" and not self.deleting

    @property
    def succeeded(self) -> bool:
        """Whether all its containers have succeeded."""
        return self.status.phase == "Succeeded"

    @property
    def failed(self) -> bool:
        """Whether one of its containers has failed, or the pod was ended before."""
        return self.status.phase == "Failed"

    @property
    def ended_at(self) -> datetime | None:
        """When its last container ended; None where that is not known."""
        ends = [each.state.terminated.finished_at for each in self.status.container_statuses if each.state.terminated]
        return max((end for end in ends if end is not None), default=None)

    @property
    def reclaimed(self) -> bool:
        """Whether it was ended from outside: by the node's end, an eviction or a preemption."""
        conditions = [
            PodCondition(one.type, one.status, one.reason, one.message, one.last_transition_time)
            for one in self.status.conditions
        ]
        state = PodState(
            succeeded=self.succeeded,
            failed=self.failed,
            reason=self.status.reason,
            message=self.status.message,
            conditions=conditions,
            grace=grace_of(self.metadata.deletion_grace_period_seconds, None),
            deleted_at=self.metadata.deletion_timestamp,
            ended_at=self.ended_at,
        )
        return isinstance(classify(state), PodReclaim)


class ConfigMap(msgspec.Struct, frozen=True):
    """The ConfigMap of a job."""

    metadata: Meta
    data: Mapping[str, str] = {}


class Named(msgspec.Struct, frozen=True):
    """An object of which only the metadata is read, such as a Service or a Secret."""

    metadata: Meta


def worker_name(job: str, index: int) -> str:
    """Returns the name of the worker with that number."""
    return f"{job}-worker-{index}"


def index_of(worker: str) -> int:
    """Returns the number at the end of a worker's name; -1 if there is none."""
    number = whole(worker.rpartition("-")[2], MAX_COUNT)
    return -1 if number is None else number


def _gpus(template: Mapping[str, Any]) -> int:
    """Returns the GPUs of the first container of a pod template; 0 where it names no number of them."""
    try:
        limit = template["spec"]["containers"][0]["resources"]["limits"][_GPU]
    except (KeyError, IndexError, TypeError):
        return 0
    return whole(str(limit), MAX_SLOTS) or 0
