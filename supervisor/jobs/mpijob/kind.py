"""Supports MPIJobs of mpi-operator: jobs of replicas, each of whose runs is one run of the launcher."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import msgspec

from servicekit.bounds import counted
from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.errors import NotFoundError
from servicekit.kubernetes.objects import Metadata, ObjectKey, OwnedMetadata
from supervisor.cluster.annotations import MAX_WORKERS, MIN_WORKERS, PREFIX, ours
from supervisor.cluster.objects import Pod
from supervisor.cluster.podspec import Body
from supervisor.decide.grant import least_workers
from supervisor.domain.capacity import ResourceRequest
from supervisor.domain.ids import Host, cluster_job
from supervisor.domain.job import Capability, Framework, Observed, Spec
from supervisor.jobs import replicated
from supervisor.jobs.annotated import asked_count
from supervisor.jobs.kind import (
    ActionProgress,
    JobKind,
    JobPodRole,
    JobReference,
    JobState,
    KindContext,
    Right,
    owned_by,
)
from supervisor.jobs.manifest import JobBody, RoleReplicas, RunPolicy, StartedStatus, decoded, gangs_of
from supervisor.jobs.observation import SUSPENSION, observed_launcher, refusal
from supervisor.jobs.pods import delete_pods, write_metadata

_NAME = "mpijob"
_JOB_NAME = "training.kubeflow.org/job-name"
_OPERATOR = "training.kubeflow.org/operator-name"
_MPI_OPERATOR = "mpi-operator"


_CONFIG_MAPS = Resource(group="", version="v1", kind="ConfigMap", plural="configmaps", namespaced=True)
BATCH_JOBS = Resource(group="batch", version="v1", kind="Job", plural="jobs", namespaced=True)
MPI_JOBS = Resource(group="kubeflow.org", version="v2beta1", kind="MPIJob", plural="mpijobs", namespaced=True)

EXCLUDED_PODS = f"{PREFIX}excluded-pods"
"""On a launcher's pod: the workers that its list of hosts leaves out. Writing it brings the list to the launcher: a
kubelet updates the files of a pod within a second when the pod changes, and once a minute otherwise."""

ROLE = "training.kubeflow.org/job-role"
EXCLUDED = "excluded"
"""The role that excludes a worker: the operator lists the Running pods with the role `worker`, and does no more."""

# A worker that is excluded stays a worker.
_ROLES: Mapping[str, JobPodRole] = {**{role.value: role for role in JobPodRole}, EXCLUDED: JobPodRole.WORKER}

SHAPE = replicated.ReplicaShape(
    replicas="mpiReplicaSpecs",
    roles=("Worker",),
    scaled="Worker",
    role_label=ROLE,
    controller="kubeflow.org/mpi-operator",
)

DISCOVERY = "discover_hosts.sh"
_SIZE = re.compile(r"(?<![\w-])(?:-n|--?np|--num-proc)[ =]+(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiJobSpec(replicated.ReplicatedSpec):
    """The spec of a job. Its hosts are its workers. `has_deadline`: its launcher's Job has an activeDeadlineSeconds.

    `discovers_hosts`: the launcher looks for its hosts as it runs; others read the hostfile once, which lists all.
    `has_fixed_size`: the launcher starts as many processes as its template says, whatever its list of hosts holds.
    """

    has_deadline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MpiJob(replicated.ReplicatedJob):
    """One job; `launcher_restarts` is the number of restarts that its launcher's Job counts.

    A job that goes on after the eviction of a worker has no condition Failed here: the operator says Failed for ever,
    and notes a completion only of one that has failed for good.
    """

    launcher_restarts: int = 0
    spec: MpiJobSpec | None = None

    @property
    def run_id(self) -> str:
        """Empty, because the launcher is the run."""
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
        conditions.discard(replicated.JobCondition.FAILED)
    return MpiJob(
        metadata=metadata.identity,
        annotations=ours(metadata.annotations),
        deleted=metadata.deletion_timestamp is not None,
        from_hub=metadata.from_hub,
        moved_with=metadata.moved_with,
        elsewhere=policy.managed_by not in (None, SHAPE.controller),
        suspended=spec is not None and bool(policy.suspend),
        conditions=frozenset(conditions),
        started_at=status.start_time,
        resource_request=resources,
        gang=policy.gang,
        spec=spec,
        launcher_restarts=counted(launchers.failed),
    )


def _asked(body: _MpiJobBody) -> tuple[MpiJobSpec | None, ResourceRequest | None]:
    """The spec and the resources of a job; None for each that cannot be read."""
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
        gangs=gangs_of({SHAPE.scaled: worker, "Launcher": launcher}),
        sizes={SHAPE.scaled: replicas},
        scaled=SHAPE.scaled,
        has_fixed_size=has_fixed_size,
        discovers_hosts=DISCOVERY in command,
        has_deadline=body.run_policy.active_deadline_seconds is not None,
    )
    return spec, None if why else resources


class _HostsConfigMap(msgspec.Struct, frozen=True):
    metadata: Metadata
    data: dict[str, str] = {}


class _LauncherJobStatus(msgspec.Struct, frozen=True, rename="camel"):
    start_time: str | None = None


class _LauncherJob(msgspec.Struct, frozen=True):
    metadata: OwnedMetadata
    status: _LauncherJobStatus = _LauncherJobStatus()


class MpiJobActions(replicated.ReplicatedJobActions[MpiJob]):
    """Implements `JobActions`."""

    def __init__(self, context: KindContext[MpiJob]) -> None:
        size = partial(replicated.resized_role, field=SHAPE.replicas)
        write = replicated.spec_writer(context, size=size, policy="runPolicy", before_start=self._clear_start)
        # A pod that is left could run, or its name is taken; those of failed launchers stay for their logs.
        super().__init__(context, write, lambda state: not state.workers and replicated.only_logs_left(state))
        self._config_maps = ResourceClient(
            context.cluster.server, _CONFIG_MAPS, msgspec.json.Decoder(_HostsConfigMap).decode
        )
        self._launcher_jobs = ResourceClient(
            context.cluster.server, BATCH_JOBS, msgspec.json.Decoder(_LauncherJob).decode
        )

    async def exclude(self, state: JobState[MpiJob], hosts: Collection[Host]) -> ActionProgress:
        """Excludes hosts, and repeats that while there are any: a replacement has the name of the pod before it."""
        launcher, client = state.launcher, self.context.cluster.pods
        if launcher is None:
            return ActionProgress.PENDING
        roles = [(pod, EXCLUDED if pod.host in hosts else str(JobPodRole.WORKER)) for pod in state.workers]
        labels = [(pod, {"labels": {ROLE: role}}) for pod, role in roles if pod.labels.get(ROLE) != role]
        for _, error in await write_metadata(client, labels):
            raise error
        excluded = (pod for pod in state.workers if pod.host in hosts)
        text = "".join(sorted(f"{pod.key.name} {pod.metadata.uid}\n" for pod in excluded))
        if launcher.annotations.get(EXCLUDED_PODS, "") != text:
            if not await self._is_listed_so(state, hosts):
                return ActionProgress.PENDING
            await client.merge(launcher, {}, metadata={"annotations": {EXCLUDED_PODS: text}})
        return ActionProgress.SETTLING if hosts else ActionProgress.IN_PLACE

    async def suspend(self, state: JobState[MpiJob]) -> ActionProgress:
        job, launcher = state.job, state.launcher
        if not job.suspended or not job.annotations.items() >= SUSPENSION.items():
            if launcher is None or not launcher.succeeded:
                await self.write(job, None, SUSPENSION)
            return ActionProgress.PENDING
        if replicated.JobCondition.SUSPENDED not in job.conditions:
            return ActionProgress.PENDING
        # Where its policy cleans up running pods alone, the operator leaves those of workers that have failed.
        ended = [pod for pod in state.workers if pod.over and pod.deleted_at is None]
        await delete_pods(self.context.cluster.pods, ended)
        return ActionProgress.IN_PLACE if self.is_released(state) else ActionProgress.PENDING

    async def _clear_start(self, job: MpiJob) -> None:
        """Clears the start time of the launcher's Job. Its deadline counts from there and would have passed at once."""
        if job.spec is None or not job.spec.has_deadline:
            return
        key = ObjectKey(job.metadata.namespace, f"{job.metadata.name}-launcher")
        try:
            launcher = await self._launcher_jobs.get(key)
        except NotFoundError:
            return
        owned = any(owner.uid == job.metadata.uid for owner in launcher.metadata.owner_references)
        if owned and launcher.status.start_time is not None:
            await self._launcher_jobs.merge(launcher, {"status": {"startTime": None}}, "status")

    async def _is_listed_so(self, state: JobState[MpiJob], hosts: Collection[Host]) -> bool:
        """Whether the operator has rewritten its list of hosts.

        It may be late, because it sends at most five requests a second.
        """
        name = state.job.metadata.name
        read = await self._config_maps.get(ObjectKey(state.job.metadata.namespace, f"{name}-config"))
        lines = read.data.get(DISCOVERY, "").splitlines()
        listed = {line.removeprefix("echo ").partition(".")[0] for line in lines if line.startswith("echo ")}
        wanted = {pod.host for pod in state.workers if pod.running and pod.host not in hosts}
        return wanted <= listed and not any(host in listed for host in hosts)


def _reference(pod: Pod) -> JobReference | None:
    """Finds the job of a worker by its owner, and that of a launcher, which the operator's Job owns, by its label."""
    owner, job = pod.owner, pod.labels.get(_JOB_NAME)
    is_launcher = (
        owner is not None
        and pod.labels.get(_OPERATOR) == _MPI_OPERATOR
        and owner.is_of(BATCH_JOBS.group, BATCH_JOBS.kind)
        and owner.name == f"{job}-launcher"
    )
    if job and is_launcher:
        return JobReference(cluster_job(pod.metadata.namespace, _NAME, job))
    return owned_by(pod, name=_NAME, resource=MPI_JOBS)


def _bounds(job: MpiJob, asked: replicated.ReplicatedSpec) -> replicated.SizeBounds:
    """Returns the bounds of a job: a launcher that reads its list of hosts only once needs all hosts."""
    annotations = [job.annotations, *asked.annotations]
    return replicated.SizeBounds(
        least=asked_count(annotations, MIN_WORKERS) if asked.discovers_hosts else None,
        most=asked_count(annotations, MAX_WORKERS),
        capabilities=frozenset({Capability.GROWS, Capability.REPLACES_HOSTS}),
    )


class MpiJobObservation(replicated.ReplicatedObservation[MpiJob]):
    """An observation of an MPIJob. A run of the launcher is a run of the job."""

    launcher_suffix = "-launcher"
    launchers_in_gang = 1

    def spec(self) -> Spec:
        spec, launcher = super().spec(), self.state.launcher
        # A fixed number of processes in the command needs that many workers.
        return replace(
            spec,
            launcher_host=None if launcher is None else launcher.host,
            least_to_start=spec.requested_workers if self.asked.has_fixed_size else spec.min_workers,
        )

    def observed(self, spec: Spec, before: Observed) -> Observed:
        launcher = self.state.launcher
        # A launcher that has failed before the present run may outlive it.
        if launcher is not None and launcher.over and before.instance not in ("", launcher.metadata.uid):
            launcher = None
        observed = observed_launcher(launcher, self.known, before)
        # The operator starts the launcher beside its workers, not after them.
        has_begun = (
            (before.running and before.instance == observed.instance)
            or replicated.JobCondition.RUNNING in self.job.conditions
            or self.has_pods(least_workers(spec, to_start=True))
        )
        running = observed.running and has_begun
        return replace(
            observed,
            running=running,
            restarts=self.job.launcher_restarts,
            hosts=self.hosts(spec, running=running),
            result=before.result or self.result(),
        )


_RULES: replicated.ReplicatedRules[MpiJob] = replicated.ReplicatedRules(
    framework=Framework.HOROVOD, bounds=_bounds, observation=MpiJobObservation
)

MPIJOB = JobKind(
    name=_NAME,
    resource=MPI_JOBS,
    rights=(
        replicated.full_right(MPI_JOBS),
        Right(
            group="",
            resources=("configmaps",),
            verbs=("get",),
            reason="to see whether the operator's list of hosts in `<job>-config` leaves out the excluded workers",
        ),
        Right(
            group="batch",
            resources=("jobs",),
            verbs=("get",),
            reason="when the launcher's Job `<job>-launcher` was first started",
        ),
        Right(
            group="batch",
            resources=("jobs/status",),
            verbs=("patch",),
            reason="to clear that before a resume, if a deadline is counted from it",
        ),
    ),
    pod_labels=frozenset({_JOB_NAME, ROLE, _OPERATOR}),
    decode=read_mpi_job,
    role=lambda labels: _ROLES.get(labels.get(ROLE, "")),
    reference=_reference,
    observe=_RULES.observe,
    actions=MpiJobActions,
    # The operator says Failed for ever of a job that goes on after the eviction of a worker.
    hub=replicated.roles_view(SHAPE, final="completionTime"),
)
