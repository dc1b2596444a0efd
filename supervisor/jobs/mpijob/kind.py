"""MPIJobs of mpi-operator as a kind of job."""

from collections.abc import Mapping
from dataclasses import replace

from supervisor.cluster.annotations import MAX_WORKERS, MIN_WORKERS
from supervisor.cluster.objects import Pod
from supervisor.decide.grant import least_to_start
from supervisor.domain.ids import Host, cluster_job
from supervisor.domain.job import Capability, Framework, Observed, Spec, SupervisedJob
from supervisor.jobs.annotated import asked_count
from supervisor.jobs.kind import JobKind, JobReference, JobState, PodRole, Right, owned_by
from supervisor.jobs.mpijob.actions import BATCH_JOBS, MpiJobActions
from supervisor.jobs.mpijob.objects import EXCLUDED, MPI_JOBS, ROLE, MpiJob, read_mpi_job
from supervisor.jobs.observation import observed_launcher
from supervisor.jobs.replicated.kind import ReplicatedObservation, ReplicatedRules, SizeBounds
from supervisor.jobs.replicated.objects import JobCondition, ReplicatedSpec, full_right

_NAME = "mpijob"
_JOB_NAME = "training.kubeflow.org/job-name"
_OPERATOR = "training.kubeflow.org/operator-name"
_MPI_OPERATOR = "mpi-operator"


def _role(labels: Mapping[str, str]) -> PodRole | None:
    """Reads the role of a pod from its label, which has another value on a worker that is excluded."""
    found = labels.get(ROLE)
    if found == EXCLUDED:
        return PodRole.WORKER
    return PodRole(found) if found in (PodRole.LAUNCHER, PodRole.WORKER) else None


_owned = owned_by(_NAME, MPI_JOBS)


def _reference(pod: Pod) -> JobReference | None:
    """By its owner, or for a launcher, which a Job of the operator's owns, by its label."""
    owner, job = pod.owner, pod.labels.get(_JOB_NAME)
    is_launcher = (
        owner is not None
        and pod.labels.get(_OPERATOR) == _MPI_OPERATOR
        and owner.is_of(BATCH_JOBS.group, BATCH_JOBS.kind)
        and owner.name == f"{job}-launcher"
    )
    if job and is_launcher:
        return JobReference(cluster_job(pod.metadata.namespace, _NAME, job))
    return _owned(pod)


def _bounds(job: MpiJob, asked: ReplicatedSpec) -> SizeBounds:
    annotations = [job.annotations, *asked.annotations]
    return SizeBounds(
        least=asked_count(annotations, MIN_WORKERS) if asked.discovers_hosts else None,
        most=asked_count(annotations, MAX_WORKERS),
        capabilities=frozenset({Capability.GROWS, Capability.REPLACES_HOSTS}),
    )


def _host(job: str, role: str, index: int) -> Host:
    return Host(f"{job}-{role.lower()}-{index}")


_RULES: ReplicatedRules[MpiJob] = ReplicatedRules(framework=Framework.HOROVOD, bounds=_bounds, host=_host)


class MpiJobObservation(ReplicatedObservation[MpiJob]):
    """One look at an MPIJob, whose runs are those of its launcher."""

    launcher_suffix = "-launcher"

    def spec(self) -> Spec:
        spec, launcher = super().spec(), self.state.launcher
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
            or JobCondition.RUNNING in self.job.conditions
            or self.has_pods(least_to_start(spec))
        )
        running = observed.running and has_begun
        return replace(
            observed,
            running=running,
            restarts=self.job.restarts,
            hosts=self.hosts(spec, running=running),
            result=before.result or self.result(),
        )


def _observe(state: JobState[MpiJob], known: SupervisedJob | None, now: float) -> SupervisedJob | None:
    asked = state.job.spec
    return None if asked is None else MpiJobObservation(state, asked, known, now, _RULES).supervised()


MPIJOB = JobKind(
    name=_NAME,
    resource=MPI_JOBS,
    rights=(
        full_right(MPI_JOBS),
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
    role=_role,
    reference=_reference,
    observe=_observe,
    actions=MpiJobActions,
)
