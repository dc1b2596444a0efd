"""An MPIJob as the supervisor keeps it, and how it is read: whatever the operator takes must not stop the rest."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

import msgspec

from servicekit.bounds import MAX_SLOTS, counted
from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.objects import Metadata
from supervisor.cluster.annotations import PREFIX, ours
from supervisor.cluster.podspec import Body
from supervisor.domain.capacity import Demand, ResourceRequest
from supervisor.jobs import manifest
from supervisor.jobs.kind import Role
from supervisor.jobs.manifest import PodTemplate, decoded
from supervisor.jobs.observation import refusal

MPI_JOBS = Resource(group="kubeflow.org", version="v2beta1", kind="MPIJob", plural="mpijobs", namespaced=True)
BATCH_JOBS = Resource(group="batch", version="v1", kind="Job", plural="jobs", namespaced=True)
KIND = "mpijob"

EXCLUDED_PODS = f"{PREFIX}excluded-pods"
"""On a launcher's pod: the workers that its list of hosts leaves out. Writing it brings the list to the launcher: a
kubelet updates the files of a pod within a second when the pod changes, and once a minute otherwise."""

JOB_NAME = "training.kubeflow.org/job-name"
ROLE = "training.kubeflow.org/job-role"
OPERATOR = "training.kubeflow.org/operator-name"
MPI_OPERATOR = "mpi-operator"
EXCLUDED = "excluded"
"""The role that excludes a worker: the operator lists the Running pods with the role `worker`, and does no more."""

_OWN_CONTROLLER = "kubeflow.org/mpi-operator"
_DISCOVERY = "discover_hosts.sh"
_SIZE = re.compile(r"(?<![\w-])(?:-n|--?np|--num-proc)[ =]+(\S+)")


class Condition(StrEnum):
    """The conditions that are asked for here."""

    RUNNING = "Running"
    """Its launcher and all workers ran once since its last start; it stays true whatever ends later."""
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


def role(labels: Mapping[str, str]) -> Role | None:
    """Returns the role of a pod by its label, which says something else of a worker that is excluded."""
    found = labels.get(ROLE)
    if found == EXCLUDED:
        return Role.WORKER
    return Role(found) if found in (Role.LAUNCHER, Role.WORKER) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """What the pods of one role are made from; `command` is what its first container runs."""

    demand: Demand
    annotations: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    variables: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiJobSpec:
    """What a job asks for. `has_deadline`: its launcher's Job may only be active for so long."""

    replicas: int
    slots: int
    suspended: bool
    has_deadline: bool
    worker: Template
    launcher: Template

    @property
    def refusal(self) -> str:
        """Why the job is too large; empty for one within the bounds."""
        return refusal([self.replicas])

    @property
    def resource_request(self) -> ResourceRequest | None:
        """What the pods of a run ask for; None if that is too much."""
        if self.refusal:
            return None
        return ResourceRequest(worker=self.worker.demand, launcher=self.launcher.demand)

    @property
    def discovers_hosts(self) -> bool:
        """Whether the launcher looks for its hosts as it runs; others read the hostfile once, which lists all."""
        return _DISCOVERY in self.launcher.command

    @property
    def has_fixed_size(self) -> bool:
        """Whether the launcher starts as many processes as its template says, whatever its list of hosts holds."""
        sizes = _SIZE.findall(self.launcher.command)
        return any(size.strip("\"'").isdecimal() or self._reads_variable(size) for size in sizes)

    def _reads_variable(self, size: str) -> bool:
        return any(re.search(rf"\$\{{?{re.escape(name)}\b", size) for name in self.launcher.variables)


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiJob:
    """One job; `spec` is None where it is not understood, `annotations` are our own.

    `started_at` is when the operator first saw it, or when it was last resumed. `completed`: it has succeeded or failed
    for good; one that goes on after the eviction of a worker has the condition Failed and is not completed. `restarts`
    are those of its launcher that its Job counts. `elsewhere`: another controller than the cluster's own runs it.
    """

    metadata: Metadata
    annotations: Mapping[str, str] = field(default_factory=dict)
    deleted: bool = False
    elsewhere: bool = False
    conditions: frozenset[str] = frozenset()
    started_at: datetime | None = None
    completed: bool = False
    restarts: int = 0
    spec: MpiJobSpec | None = None

    @property
    def suspended(self) -> bool:
        """Whether the operator has been told to let go of all its pods."""
        return self.spec is not None and self.spec.suspended

    @property
    def still_suspended(self) -> bool:
        """Whether the operator says that it is suspended, which it does for a moment after a resume, too."""
        return self.has(Condition.SUSPENDED)

    def has(self, condition: Condition) -> bool:
        return condition in self.conditions


class _Replicas(Body, frozen=True):
    template: PodTemplate
    replicas: int | None = None


class _ReplicaSpecs(Body, frozen=True, rename="pascal"):
    launcher: _Replicas
    worker: _Replicas


class _RunPolicy(Body, frozen=True):
    suspend: bool | None = None
    active_deadline_seconds: int | None = None
    managed_by: str | None = None


class _Spec(Body, frozen=True):
    mpi_replica_specs: _ReplicaSpecs
    slots_per_worker: int | None = None
    run_policy: _RunPolicy = _RunPolicy()


class _ReplicaStatus(Body, frozen=True):
    failed: int = 0


class _Status(Body, frozen=True):
    conditions: tuple[manifest.Condition, ...] | None = None
    replica_statuses: dict[str, _ReplicaStatus] | None = None
    start_time: datetime | None = None
    completion_time: datetime | None = None


def read_mpi_job(data: bytes | msgspec.Raw) -> MpiJob:
    """A job from the API server's JSON.

    Raises:
        msgspec.MsgspecError: It is no object at all.
    """
    read = msgspec.json.decode(data, type=manifest.JobBody)
    metadata, spec, status = read.metadata, decoded(read.spec, _Spec), decoded(read.status, _Status) or _Status()
    launchers = (status.replica_statuses or {}).get("Launcher", _ReplicaStatus())
    manager = None if spec is None else spec.run_policy.managed_by
    return MpiJob(
        metadata=metadata.identity,
        annotations=ours(metadata.annotations),
        deleted=metadata.deletion_timestamp is not None,
        elsewhere=manager not in (None, _OWN_CONTROLLER),
        conditions=frozenset(each.type for each in status.conditions or () if each.holds),
        started_at=status.start_time,
        completed=status.completion_time is not None,
        restarts=counted(launchers.failed),
        spec=None if spec is None else _spec(spec),
    )


def _spec(spec: _Spec) -> MpiJobSpec | None:
    try:
        worker, launcher = spec.mpi_replica_specs.worker, spec.mpi_replica_specs.launcher
        return MpiJobSpec(
            replicas=worker.replicas or 0,
            slots=min(max(spec.slots_per_worker or 1, 1), MAX_SLOTS),
            suspended=bool(spec.run_policy.suspend),
            has_deadline=spec.run_policy.active_deadline_seconds is not None,
            worker=_template(worker.template),
            launcher=_template(launcher.template),
        )
    except (msgspec.MsgspecError, ValueError):
        return None


def _template(template: PodTemplate) -> Template:
    containers = template.containers()
    return Template(
        demand=template.demand(),
        annotations=template.annotations,
        command=" ".join(word for each in containers for word in each.words),
        variables=frozenset(each.name for container in containers for each in container.env or ()),
    )
