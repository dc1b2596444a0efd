"""TrainingJobs of et-operator as a kind of job: Horovod jobs with a launcher, submitted with Arena."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from servicekit.bounds import MAX_LISTED_WORKERS
from supervisor.cluster.objects import PodPhase
from supervisor.decide.reasons import freed
from supervisor.domain.ids import Host
from supervisor.domain.job import ELASTIC, Framework, Observed, Phase, Result, Spec, SupervisedJob
from supervisor.jobs.kind import HostDiscovery, JobKind, JobState, PodRole, Right, owned_by
from supervisor.jobs.observation import STATUS_OF, JobObservation, marked_result, observed_launcher
from supervisor.jobs.trainingjob.actions import TrainingJobActions
from supervisor.jobs.trainingjob.discovery import DISCOVERY
from supervisor.jobs.trainingjob.objects import (
    KIND,
    SCALE_OUT,
    SUSPENDED,
    TRAINING_JOBS,
    JobPhase,
    TrainingJob,
    TrainingJobFailpoint,
    TrainingJobSpec,
    read_training_job,
)

_ROLE = "training-job-role"
_ANNOTATIONS = frozenset({SUSPENDED})

_OF_THE_OPERATOR = (Phase.WAITING, Phase.RUNNING, Phase.SHRINKING)
"""The phases in which the operator starts the job and keeps it running."""

_STOPPED = (Phase.STOPPING, Phase.SUSPENDED, Phase.TIMED_OUT, Phase.FINISHED)
"""A run that fails in one of these phases was stopped by the supervisor."""

_SUSPENDED_BEFORE = "The job was already suspended; waiting for capacity."


class TrainingJobObservation(JobObservation[TrainingJob, TrainingJobSpec]):
    """One look at a TrainingJob."""

    launcher_suffix = "-launcher"

    def last_hosts(self) -> list[Host]:
        return [Host(f"{self.job.metadata.name}-worker-{self.asked.replicas - 1}")]

    def spec(self) -> Spec:
        asked, requested = self.asked, self.requested
        least = min(max(asked.least or requested, 1), requested)
        return Spec(
            framework=self.framework,
            min_workers=least,
            max_workers=min(max(asked.most or requested, requested), MAX_LISTED_WORKERS),
            requested_workers=requested,
            launcher_host=Host(f"{self.job.metadata.name}-launcher"),
            capabilities=ELASTIC,
            # A fixed number of processes in the command needs that many workers.
            least_to_start=least if asked.sized_by_variable else requested,
        )

    def observed(self, spec: Spec, before: Observed) -> Observed:
        job, launcher = self.job, self.state.launcher
        observed = observed_launcher(launcher, self.known, before)
        # The operator believes that there is a launcher.
        is_missing = launcher is None and job.has_launcher
        lost_since = self.now if observed.launcher_lost_since is None else observed.launcher_lost_since
        return replace(
            observed,
            restarts=job.restarts,
            hosts=self._hosts(spec, running=observed.running),
            result=before.result or self.result(),
            launcher_lost_since=lost_since if is_missing else None,
        )

    def _hosts(self, spec: Spec, *, running: bool) -> frozenset[Host]:
        """The running workers, including terminating ones; before a start, those that the operator would create.

        This matches the operator's list in the launcher; the lists in the job's status lag behind. The operator lists
        the pods of a ScaleOut only once all of them run. It deletes the pods of a suspended job one by one: those
        changes are ignored, as each would cause a write.
        """
        job = self.job
        if not running or job.suspended:
            return frozenset(job.worker_names(spec.requested_workers))
        listed = job.targets | job.current
        return frozenset(
            pod.host
            for pod in self.state.workers
            if pod.phase is PodPhase.RUNNING and (SCALE_OUT not in pod.labels or pod.key.name in listed)
        )

    def result(self) -> Result | None:
        job, launcher = self.job, self.state.launcher
        held = (job.suspended and job.phase is JobPhase.SUSPENDED) or job.phase is JobPhase.FAILED
        if held and (marked := marked_result(job.annotations)) is not None:
            return marked
        # The launcher's exit counts before the operator has noticed it: a succeeded job must never be suspended.
        if job.phase is JobPhase.SUCCEEDED or (launcher is not None and launcher.succeeded):
            return Result.SUCCEEDED
        stopped = self.known is not None and self.known.decision.phase in _STOPPED
        final = not self.asked.restarts or job.restarts >= self.asked.backoff_limit
        return Result.FAILED if job.phase is JobPhase.FAILED and final and not stopped else None

    def waiting_since(self) -> datetime | None:
        """When the job's present start began to wait: the job may have run for days before."""
        job = self.job
        return job.metadata.creation_timestamp if job.phase is JobPhase.NEW else job.moved_at

    def reason_if_suspended(self) -> str:
        if self.job.suspended:
            return _SUSPENDED_BEFORE
        return freed() if self.job.phase is JobPhase.SUSPENDED else ""

    def is_freed(self, known: SupervisedJob) -> bool:
        """Returns whether somebody has changed the state of a stored job, so that it must be registered again."""
        job, state, decision = self.job, self.state, known.decision
        if job.suspended:
            return False
        if known.observed.result in STATUS_OF:
            resumed = job.phase is not JobPhase.FAILED  # A person has resumed a job that had timed out.
        else:
            # A person has started a job that was about to be resumed here.
            adopted = decision.phase is Phase.SUSPENDED and not (decision.run or decision.hosts or known.observed.run)
            resumed = adopted and job.phase is not JobPhase.SUSPENDED
        # The operator writes Suspended from its older copy of a job that somebody suspends and resumes within 0.2 s,
        # and never leaves Suspended by itself. In the other phases the supervisor suspends or resumes the job, or its
        # queue holds it.
        is_queued = state.admission is not None and bool(state.admission.held)
        is_left_so = job.phase is JobPhase.SUSPENDED and not state.pods and not is_queued
        return resumed or (is_left_so and decision.phase in _OF_THE_OPERATOR)


def _observe(state: JobState[TrainingJob], known: SupervisedJob | None, now: float) -> SupervisedJob | None:
    asked = state.job.spec
    if asked is None:
        return None
    look = TrainingJobObservation(state, asked, known, now, framework=Framework.HOROVOD, own=_ANNOTATIONS)
    return look.supervised()


def _role(labels: Mapping[str, str]) -> PodRole | None:
    found = labels.get(_ROLE)
    return PodRole(found) if found in (PodRole.LAUNCHER, PodRole.WORKER) else None


TRAININGJOB = JobKind(
    name=KIND,
    resource=TRAINING_JOBS,
    rights=(
        Right(
            group=TRAINING_JOBS.group,
            resources=("trainingjobs",),
            verbs=("get", "list", "watch", "patch"),
            reason="to follow jobs, and to suspend, resize and resume them; get after a conflicting change",
        ),
        Right(
            group=TRAINING_JOBS.group,
            resources=("trainingjobs/status",),
            verbs=("patch",),
            reason="the status from which the operator restarts a suspended job",
        ),
        Right(
            group=TRAINING_JOBS.group,
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
    ),
    pod_labels=frozenset({_ROLE, SCALE_OUT}),
    annotations=_ANNOTATIONS,
    discovery=HostDiscovery(directory="/etc/edl", file="discover_hosts.sh", script=DISCOVERY),
    failpoints=tuple(TrainingJobFailpoint),
    decode=read_training_job,
    role=_role,
    reference=owned_by(KIND, TRAINING_JOBS),
    observe=_observe,
    actions=TrainingJobActions,
)
