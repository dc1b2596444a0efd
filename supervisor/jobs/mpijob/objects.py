"""MPIJobs of mpi-operator, and their reader."""

import re
from dataclasses import dataclass
from datetime import datetime

import msgspec

from servicekit.bounds import counted
from servicekit.kubernetes.client import Resource
from supervisor.cluster.annotations import PREFIX, ours
from supervisor.cluster.podspec import Body
from supervisor.domain.capacity import ResourceRequest
from supervisor.jobs.manifest import JobBody, RoleReplicas, RunPolicy, StartedStatus, decoded
from supervisor.jobs.observation import refusal
from supervisor.jobs.replicated.objects import JobCondition, ReplicaShape, ReplicatedJob, ReplicatedSpec

MPI_JOBS = Resource(group="kubeflow.org", version="v2beta1", kind="MPIJob", plural="mpijobs", namespaced=True)

EXCLUDED_PODS = f"{PREFIX}excluded-pods"
"""On a launcher's pod: the workers that its list of hosts leaves out. Writing it brings the list to the launcher: a
kubelet updates the files of a pod within a second when the pod changes, and once a minute otherwise."""

ROLE = "training.kubeflow.org/job-role"
EXCLUDED = "excluded"
"""The role that excludes a worker: the operator lists the Running pods with the role `worker`, and does no more."""

SHAPE = ReplicaShape(
    replicas="mpiReplicaSpecs",
    roles=("Worker",),
    scaled="Worker",
    role_label=ROLE,
    controller="kubeflow.org/mpi-operator",
)

DISCOVERY = "discover_hosts.sh"
_SIZE = re.compile(r"(?<![\w-])(?:-n|--?np|--num-proc)[ =]+(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiJobSpec(ReplicatedSpec):
    """The spec of a job, whose hosts are its workers. `has_deadline`: its launcher's Job has an active deadline.

    `discovers_hosts`: the launcher looks for its hosts as it runs; others read the hostfile once, which lists all.
    `has_fixed_size`: the launcher starts as many processes as its template says, whatever its list of hosts holds.
    """

    has_deadline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiJob(ReplicatedJob):
    """One job; `restarts` are those of its launcher that its Job counts.

    A job that goes on after the eviction of a worker has no condition Failed here: the operator says Failed for ever,
    and notes a completion only of one that has failed for good.
    """

    restarts: int = 0
    spec: MpiJobSpec | None = None

    @property
    def run_id(self) -> str:
        """Empty, as its launcher is the run."""
        return ""


class _MpiReplicaSpecs(Body, frozen=True, rename="pascal"):
    launcher: RoleReplicas
    worker: RoleReplicas


class _MpiRunPolicy(RunPolicy, frozen=True):
    active_deadline_seconds: int | None = None


class _MpiJobBody(Body, frozen=True):
    mpi_replica_specs: _MpiReplicaSpecs
    run_policy: _MpiRunPolicy = _MpiRunPolicy()


class _MpiReplicaStatus(Body, frozen=True):
    failed: int = 0


class _MpiJobStatus(StartedStatus, frozen=True):
    replica_statuses: dict[str, _MpiReplicaStatus] | None = None
    completion_time: datetime | None = None


def read_mpi_job(data: bytes | msgspec.Raw) -> MpiJob:
    """Decodes a job from the API server's JSON.

    Raises:
        msgspec.MsgspecError: It is no object at all.
    """
    read = msgspec.json.decode(data, type=JobBody)
    metadata, body = read.metadata, decoded(read.spec, _MpiJobBody)
    status = decoded(read.status, _MpiJobStatus) or _MpiJobStatus()
    launchers = (status.replica_statuses or {}).get("Launcher", _MpiReplicaStatus())
    policy = _MpiRunPolicy() if body is None else body.run_policy
    spec, resources = (None, None) if body is None else _asked(body)
    conditions = {each.type for each in status.true}
    if status.completion_time is None:
        conditions.discard(JobCondition.FAILED)
    return MpiJob(
        metadata=metadata.identity,
        annotations=ours(metadata.annotations),
        deleted=metadata.deletion_timestamp is not None,
        elsewhere=policy.managed_by not in (None, SHAPE.controller),
        suspended=spec is not None and bool(policy.suspend),
        conditions=frozenset(conditions),
        started_at=status.start_time,
        resource_request=resources,
        spec=spec,
        restarts=counted(launchers.failed),
    )


def _asked(body: _MpiJobBody) -> tuple[MpiJobSpec | None, ResourceRequest | None]:
    """The spec and the resources of a job; None where they are not understood."""
    worker, launcher = body.mpi_replica_specs.worker.template, body.mpi_replica_specs.launcher.template
    try:
        worker.containers()  # A job with an unreadable template is left alone.
        containers = launcher.containers()
        resources = ResourceRequest(worker=worker.demand(), launcher=launcher.demand())
    except (msgspec.MsgspecError, ValueError):
        return None, None
    command = " ".join(word for each in containers for word in each.words)
    variables = {each.name for container in containers for each in container.env or ()}
    # A size that is a number, or that a variable of the template holds.
    has_fixed_size = any(
        size.strip("\"'").isdecimal()
        or any(name in size and re.search(rf"\$\{{?{re.escape(name)}\b", size) for name in variables)
        for size in _SIZE.findall(command)
    )
    replicas = body.mpi_replica_specs.worker.replicas or 0
    why = refusal([replicas])
    spec = MpiJobSpec(
        replicas=replicas,
        annotations=(worker.annotations, launcher.annotations),
        refusal=why,
        sizes={SHAPE.scaled: replicas},
        scaled=SHAPE.scaled,
        has_fixed_size=has_fixed_size,
        discovers_hosts=DISCOVERY in command,
        has_deadline=body.run_policy.active_deadline_seconds is not None,
    )
    return spec, None if why else resources
