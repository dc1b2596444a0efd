"""TrainingJobs of et-operator: Horovod jobs with a launcher, submitted with Arena."""

from collections.abc import Mapping

import msgspec

from supervisor.cluster.objects import Pod
from supervisor.domain.capacity import ResourceRequest
from supervisor.domain.ids import cluster_job
from supervisor.domain.job import SupervisedJob
from supervisor.jobs.kind import Discovery, JobReference, KindContext, Right, Role, launched_run
from supervisor.jobs.trainingjob.actions import TrainingJobActions
from supervisor.jobs.trainingjob.discovery import DISCOVERY
from supervisor.jobs.trainingjob.failpoints import At
from supervisor.jobs.trainingjob.objects import (
    KIND,
    OWN_ANNOTATIONS,
    ROLE,
    SCALE_OUT,
    TRAINING_JOBS,
    TrainingJob,
    read_training_job,
    role,
)
from supervisor.jobs.trainingjob.observe import State, supervised

_GROUP = TRAINING_JOBS.group


class TrainingJobKind:
    """Implements `JobKind`."""

    name = KIND
    resource = TRAINING_JOBS
    pod_labels = frozenset({ROLE, SCALE_OUT})
    rights = (
        Right(
            group=_GROUP,
            resources=("trainingjobs",),
            verbs=("get", "list", "watch", "patch"),
            reason="to follow jobs, and to suspend, resize and resume them; get after a conflicting change",
        ),
        Right(
            group=_GROUP,
            resources=("trainingjobs/status",),
            verbs=("patch",),
            reason="the status from which the operator restarts a suspended job",
        ),
        Right(
            group=_GROUP,
            resources=("scaleouts",),
            verbs=("list", "watch", "create", "delete"),
            reason="to let a job that was resumed smaller grow while it runs. Without these rights, or the CRD of "
            "ScaleOuts, the job regains its size at its next resume",
        ),
        Right(
            group="",
            resources=("configmaps",),
            verbs=("get", "patch"),
            reason="the host list of a job that resumes, in its ConfigMap `<job>-config`",
        ),
        Right(
            group="",
            resources=("pods/exec",),
            verbs=("get", "create"),
            reason="to write the excluded hosts into launchers that do not mount the list; API servers before 1.35 "
            "require get, later ones create",
        ),
    )
    discovery = Discovery(directory="/etc/edl", file="discover_hosts.sh", script=DISCOVERY)
    dependent = None
    failpoints = tuple(At)
    annotations = OWN_ANNOTATIONS

    def decode(self, data: bytes | msgspec.Raw) -> TrainingJob:
        return read_training_job(data)

    def role(self, labels: Mapping[str, str]) -> Role | None:
        return role(labels)

    def run_id(self, _job: TrainingJob, launcher: Pod | None) -> str:
        return launched_run(launcher)

    def reference(self, pod: Pod) -> JobReference | None:
        """Only by the owner: a job of the same name in another namespace has pods with the same labels."""
        if pod.owner is None or not pod.owner.is_of(TRAINING_JOBS.group, TRAINING_JOBS.kind):
            return None
        return JobReference(cluster_job(pod.metadata.namespace, KIND, pod.owner.name), pod.owner.uid)

    def runs_elsewhere(self, _state: State) -> bool:
        return False

    def observe(self, state: State, known: SupervisedJob | None, now: float) -> SupervisedJob | None:
        return supervised(state, known, now)

    def resource_request(self, job: TrainingJob) -> ResourceRequest | None:
        return None if job.spec is None else job.spec.resource_request

    def actions(self, context: KindContext[TrainingJob]) -> TrainingJobActions:
        return TrainingJobActions(context)
