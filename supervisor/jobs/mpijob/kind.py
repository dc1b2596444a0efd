"""MPIJobs of mpi-operator as a kind of job."""

from collections.abc import Mapping

import msgspec

from supervisor.cluster.objects import Pod
from supervisor.domain.capacity import ResourceRequest
from supervisor.domain.ids import cluster_job
from supervisor.domain.job import SupervisedJob
from supervisor.jobs.kind import JobReference, KindContext, Right, Role, launched_run
from supervisor.jobs.mpijob import observe
from supervisor.jobs.mpijob.actions import MpiJobActions
from supervisor.jobs.mpijob.objects import (
    BATCH_JOBS,
    JOB_NAME,
    KIND,
    MPI_JOBS,
    MPI_OPERATOR,
    OPERATOR,
    ROLE,
    MpiJob,
    read_mpi_job,
    role,
)


class MpiJobKind:
    """See `supervisor.jobs.kind.JobKind`."""

    name = KIND
    resource = MPI_JOBS
    pod_labels = frozenset({JOB_NAME, ROLE, OPERATOR})
    rights = (
        Right(
            group="kubeflow.org",
            resources=("mpijobs",),
            verbs=("get", "list", "watch", "patch"),
            reason="to follow jobs, and to suspend, resize and resume them",
        ),
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
    )
    discovery = None
    dependent = None
    failpoints = ()
    annotations = frozenset[str]()

    def decode(self, data: bytes | msgspec.Raw) -> MpiJob:
        return read_mpi_job(data)

    def role(self, labels: Mapping[str, str]) -> Role | None:
        return role(labels)

    def run_id(self, _job: MpiJob, launcher: Pod | None) -> str:
        return launched_run(launcher)

    def reference(self, pod: Pod) -> JobReference | None:
        """By its owner, or for a launcher, which a Job of the operator's owns, by its label."""
        owner = pod.owner
        if owner is None:
            return None
        if owner.is_of(MPI_JOBS.group, MPI_JOBS.kind):
            return JobReference(cluster_job(pod.metadata.namespace, KIND, owner.name), owner.uid)
        job = pod.labels.get(JOB_NAME)
        is_launcher = (
            pod.labels.get(OPERATOR) == MPI_OPERATOR
            and owner.is_of(BATCH_JOBS.group, BATCH_JOBS.kind)
            and owner.name == f"{job}-launcher"
        )
        return JobReference(cluster_job(pod.metadata.namespace, KIND, job)) if job and is_launcher else None

    def runs_elsewhere(self, state: observe.State) -> bool:
        return state.job.elsewhere

    def observe(self, state: observe.State, known: SupervisedJob | None, now: float) -> SupervisedJob | None:
        return observe.supervised(state, known, now)

    def resource_request(self, job: MpiJob) -> ResourceRequest | None:
        return None if job.spec is None else job.spec.resource_request

    def actions(self, context: KindContext[MpiJob]) -> MpiJobActions:
        return MpiJobActions(context)
