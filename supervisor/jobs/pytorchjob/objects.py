"""A PyTorchJob as the supervisor keeps it, and how it is read: whatever the operator takes must not stop the rest."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

import msgspec

from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.objects import Metadata
from supervisor.cluster.annotations import ours
from supervisor.cluster.podspec import Body, PodSpec
from supervisor.domain.capacity import Demand, ResourceRequest
from supervisor.jobs.kind import Role
from supervisor.jobs.manifest import ObjectMetadata

PYTORCH_JOBS = Resource(group="kubeflow.org", version="v1", kind="PyTorchJob", plural="pytorchjobs", namespaced=True)
KIND = "pytorchjob"

REPLICA_TYPE = "training.kubeflow.org/replica-type"
_ROLES = ("master", "worker")
_OWN_CONTROLLER = "kubeflow.org/training-operator"
_BACKEND = "kubeai"
_BACKEND_VARIABLE = "PET_RDZV_BACKEND"
_BACKEND_OPTION = re.compile(rf"--rdzv[-_]backend[= ]{_BACKEND}(?!\S)")
_NEVER = "Never"


class Condition(StrEnum):
    """The conditions that are asked for here."""

    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


def role(labels: Mapping[str, str]) -> Role | None:
    """Returns the role of a pod: masters train like workers."""
    return Role.WORKER if labels.get(REPLICA_TYPE) in _ROLES else None


@dataclass(frozen=True, slots=True, kw_only=True)
class PyTorchJobSpec:
    """What a job asks for.

    Attributes:
        workers: The present number of workers; that of a job that was resumed with fewer is smaller than requested.
        masters: 1 if there is a master, which trains like a worker.
        least: The fewest pods with which the job goes on; None if it is not elastic.
        most: The most pods that it can use; None if it is not elastic.
        suspended: The operator has been told to delete all pods.
        follows_rounds: Its elastic agents use the rendezvous backend of the supervisor, so that a host can leave.
        replaces_pods: The loss of a pod does not end the job.
        demand: The resources of a worker.
        annotations: Those of each template.
    """

    workers: int
    masters: int
    least: int | None
    most: int | None
    suspended: bool
    follows_rounds: bool
    replaces_pods: bool
    demand: Demand
    annotations: tuple[Mapping[str, str], ...]

    @property
    def replicas(self) -> int:
        """The number of pods of a run at present."""
        return self.masters + self.workers


@dataclass(frozen=True, slots=True, kw_only=True)
class PyTorchJob:
    """One job; `spec` is None where it is not understood, `annotations` are our own.

    `started_at` is when the operator first saw it, or last resumed it. `elsewhere`: another controller runs it.
    """

    metadata: Metadata
    annotations: Mapping[str, str] = field(default_factory=dict)
    deleted: bool = False
    elsewhere: bool = False
    conditions: frozenset[str] = frozenset()
    started_at: datetime | None = None
    spec: PyTorchJobSpec | None = None

    @property
    def suspended(self) -> bool:
        """Whether the operator has been told to delete all pods."""
        return self.spec is not None and self.spec.suspended

    @property
    def resource_request(self) -> ResourceRequest | None:
        """The resources of a run; None if they are unknown."""
        return None if self.spec is None else ResourceRequest(worker=self.spec.demand)

    @property
    def still_suspended(self) -> bool:
        """Whether the operator says that it is suspended, which it does for a moment after a resume, too."""
        return self.has(Condition.SUSPENDED)

    def has(self, condition: Condition) -> bool:
        return condition in self.conditions


class _Variable(Body, frozen=True):
    name: str
    value: str = ""


class _Container(Body, frozen=True):
    command: tuple[str, ...] | None = ()
    args: tuple[str, ...] | None = ()
    env: tuple[_Variable, ...] | None = ()


class _Containers(Body, frozen=True):
    containers: tuple[_Container, ...]

    @property
    def follows_rounds(self) -> bool:
        texts = (" ".join((*(each.command or ()), *(each.args or ()))) for each in self.containers)
        variables = {(each.name, each.value) for container in self.containers for each in container.env or ()}
        return (_BACKEND_VARIABLE, _BACKEND) in variables or any(_BACKEND_OPTION.search(text) for text in texts)


class _TemplateMetadata(Body, frozen=True):
    annotations: dict[str, str] | None = None


class _Template(Body, frozen=True):
    spec: msgspec.Raw
    metadata: _TemplateMetadata = _TemplateMetadata()


class _Replicas(Body, frozen=True):
    template: _Template
    replicas: int | None = None
    restart_policy: str = ""


class _ReplicaSpecs(Body, frozen=True, rename="pascal"):
    master: _Replicas | None = None
    worker: _Replicas | None = None


class _ElasticPolicy(Body, frozen=True):
    min_replicas: int | None = None
    max_replicas: int | None = None
    rdzv_backend: str | None = None


class _RunPolicy(Body, frozen=True):
    suspend: bool | None = None
    managed_by: str | None = None


class _Spec(Body, frozen=True):
    replica_specs: _ReplicaSpecs = msgspec.field(name="pytorchReplicaSpecs")
    elastic_policy: _ElasticPolicy | None = None
    run_policy: _RunPolicy = _RunPolicy()


class _Condition(Body, frozen=True):
    type: str
    status: str


class _Status(Body, frozen=True):
    conditions: tuple[_Condition, ...] | None = None
    start_time: datetime | None = None


class _PyTorchJob(Body, frozen=True):
    metadata: ObjectMetadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


def read_pytorch_job(data: bytes | msgspec.Raw) -> PyTorchJob:
    """Returns a job from the API server's JSON.

    Raises:
        msgspec.MsgspecError: It is no object at all.
    """
    read = msgspec.json.decode(data, type=_PyTorchJob)
    metadata, spec, status = read.metadata, _decoded(read.spec), _status(read.status)
    manager = None if spec is None else spec.run_policy.managed_by
    return PyTorchJob(
        metadata=metadata.identity,
        annotations=ours(metadata.annotations),
        deleted=metadata.deletion_timestamp is not None,
        elsewhere=manager not in (None, _OWN_CONTROLLER),
        conditions=frozenset(each.type for each in status.conditions or () if each.status == "True"),
        started_at=status.start_time,
        spec=None if spec is None else _spec(spec),
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


def _spec(spec: _Spec) -> PyTorchJobSpec | None:
    master, worker, elastic = spec.replica_specs.master, spec.replica_specs.worker, spec.elastic_policy
    present = [each for each in (worker, master) if each is not None]
    try:
        pods = [msgspec.json.decode(each.template.spec, type=_Containers) for each in present]
        demands = [msgspec.json.decode(each.template.spec, type=PodSpec).demand() for each in present]
    except (msgspec.MsgspecError, ValueError):
        return None
    if not demands:
        return None
    return PyTorchJobSpec(
        workers=0 if worker is None else _replicas(worker),
        masters=0 if master is None else _replicas(master),
        least=None if elastic is None else elastic.min_replicas or 1,
        most=None if elastic is None else elastic.max_replicas,
        suspended=bool(spec.run_policy.suspend),
        follows_rounds=(elastic is not None and elastic.rdzv_backend == _BACKEND)
        or all(each.follows_rounds for each in pods),
        replaces_pods=all(each.restart_policy != _NEVER for each in present),
        demand=demands[0],
        annotations=tuple(ours(each.template.metadata.annotations) for each in present),
    )


def _replicas(specs: _Replicas) -> int:
    return 1 if specs.replicas is None else specs.replicas
