"""Reads and observes TrainingJobs of et-operator. The reader accepts whatever the operator accepts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

import msgspec

from servicekit.bounds import MAX_LISTED_WORKERS, MAX_SLOTS, counted, nearest_seconds, whole
from servicekit.kubernetes.client import Resource
from supervisor.cluster.annotations import PREFIX, ours
from supervisor.cluster.objects import PodPhase
from supervisor.cluster.podspec import Body, amounts_of
from supervisor.decide.reasons import FREED
from supervisor.domain.capacity import Demand, ResourceRequest
from supervisor.domain.ids import Host
from supervisor.domain.job import ELASTIC, Framework, Observed, Phase, Result, Spec, SupervisedJob
from supervisor.jobs.kind import CommonJobSpec, JobObject, JobPodRole, JobState
from supervisor.jobs.manifest import ConditionsStatus, JobBody, PodTemplate, decoded, gangs_of
from supervisor.jobs.observation import STATUS_OF, JobObservation, marked_result, observed_launcher, refusal

TRAINING_JOBS = Resource(
    group="kai.alibabacloud.com", version="v1alpha1", kind="TrainingJob", plural="trainingjobs", namespaced=True
)
KIND = "trainingjob"

SUSPENDED = f"{PREFIX}job-suspended"
"""The annotation that makes the operator delete a job's pods, and start it again when it is removed."""
OWN_ANNOTATIONS = frozenset({SUSPENDED})
SCALE_OUT = "scaleout-name"
"""The label of pods that the operator made for a ScaleOut."""

_LAUNCHED = "LauncherCreated"

SIZE = "workers"
"""The variable from which a launcher's command computes how many processes it starts."""

_COMPUTED = re.compile(r"(?<![\w-])(?:-np|--num-proc)[ =]+[^-]*?\$\{?workers\b")
_DEFAULT_BACKOFF_LIMIT = 6

_HOSTFILE_WRITER = amounts_of({"cpu": "100m", "memory": "512Mi", "ephemeral-storage": "5Gi"})
"""The requests of an init container that the operator adds to launchers; they must be free for a moment."""


_OF_THE_OPERATOR = (Phase.WAITING, Phase.RUNNING, Phase.SHRINKING)
"""The phases in which the operator starts the job and keeps it running."""

_STOPPED = (Phase.STOPPING, Phase.SUSPENDED, Phase.TIMED_OUT, Phase.FINISHED)
"""A run that fails in one of these phases was stopped by the supervisor."""

_SUSPENDED_BEFORE = "The job was already suspended; waiting for capacity."


class TrainingJobFailpoint(StrEnum):
    """The failpoints in actions on TrainingJobs, in the order in which a job passes them."""

    EXCLUSIONS_SHOWN = "exclusions.shown"
    EXCLUSIONS_LISTED = "exclusions.listed"
    RUN_SUSPENDED = "run.suspended"
    RUN_LISTED = "run.listed"
    RUN_SIZED = "run.sized"
    RUN_FREED = "run.freed"
    RUN_STARTED = "run.started"
    GROWTH_ASKED = "growth.asked"
    GROWTH_TIDIED = "growth.tidied"


class JobPhase(StrEnum):
    """The phase of a job as the operator reports it."""

    NEW = ""
    CREATED = "Created"
    RUNNING = "Running"
    SCALING = "Scaling"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingVariable:
    """An environment variable of a container: its value and its JSON pointer in the job."""

    value: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTemplate:
    """The pod template of one role; `container` is its first container's name, `command` its joined commands."""

    demand: Demand
    annotations: Mapping[str, str] = field(default_factory=dict)
    container: str = ""
    command: str = ""
    variables: Mapping[str, TrainingVariable] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJobSpec(CommonJobSpec):
    """The spec of a job, whose hosts are its workers; `slots` is the number per worker."""

    least: int | None
    most: int | None
    slots: int
    worker: TrainingTemplate
    launcher: TrainingTemplate
    restarts: bool
    backoff_limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob(JobObject):
    """One job; it is `suspended` while an annotation asks the operator to delete all its pods.

    `targets` are the workers that the operator wants to be there, `current` those that ran when it last looked.
    `launched`: the operator has made the launcher of this start. `moved_at` is when a condition last became true.
    """

    phase: JobPhase = JobPhase.NEW
    restarts: int = 0
    launched: bool = False
    moved_at: datetime | None = None
    targets: frozenset[str] = frozenset()
    current: frozenset[str] = frozenset()
    spec: TrainingJobSpec | None = None

    @property
    def waiting_since(self) -> datetime | None:
        """When its present start began to wait, which may be days after the job's creation."""
        return self.metadata.creation_timestamp if self.phase is JobPhase.NEW else self.moved_at

    def worker_names(self, workers: int) -> list[Host]:
        """The names of the workers that the operator creates at a start."""
        return [Host(f"{self.metadata.name}-worker-{number}") for number in range(workers)]


class _TrainingReplicas(Body, frozen=True):
    template: PodTemplate
    replicas: int = 1
    min_replicas: int | None = None
    max_replicas: int | None = None


class _TrainingReplicaSpecs(Body, frozen=True):
    launcher: _TrainingReplicas
    worker: _TrainingReplicas


class _TrainingJobBody(Body, frozen=True):
    et_replica_specs: _TrainingReplicaSpecs
    restart_policy: str = "Never"
    backoff_limit: int | None = None
    slots_per_worker: int | None = None


class _TrainingJobStatus(ConditionsStatus, frozen=True):
    phase: str = ""
    restart_count: int | None = None
    target_workers: frozenset[str] | None = None
    current_workers: frozenset[str] | None = None


def read_training_job(data: bytes | msgspec.Raw) -> TrainingJob:
    """Decodes a job from the API server's JSON.

    Raises:
        msgspec.MsgspecError: It is no object at all.
    """
    read = msgspec.json.decode(data, type=JobBody)
    metadata, annotations = read.metadata, ours(read.metadata.annotations)
    status = decoded(read.status, _TrainingJobStatus) or _TrainingJobStatus(phase=JobPhase.UNKNOWN)
    moved = (each.last_transition_time for each in status.true if each.last_transition_time)
    spec, resources = _spec(read.spec), None
    if spec is not None and not spec.refusal:
        demand = spec.launcher.demand
        names = demand.requests.keys() | _HOSTFILE_WRITER.keys()
        requests = {name: max(demand.requests.get(name, 0), _HOSTFILE_WRITER.get(name, 0)) for name in names}
        resources = ResourceRequest(worker=spec.worker.demand, launcher=replace(demand, requests=requests))
    return TrainingJob(
        metadata=metadata.identity,
        annotations=annotations,
        deleted=metadata.deletion_timestamp is not None,
        from_hub=metadata.from_hub,
        moved_with=metadata.moved_with,
        suspended=annotations.get(SUSPENDED) == "true",
        resource_request=resources,
        spec=spec,
        phase=JobPhase(status.phase) if status.phase in list(JobPhase) else JobPhase.UNKNOWN,
        restarts=counted(status.restart_count),
        launched=any(each.type == _LAUNCHED for each in status.true),
        moved_at=max(moved, key=nearest_seconds, default=None),
        targets=status.target_workers or frozenset(),
        current=status.current_workers or frozenset(),
    )


def _spec(data: msgspec.Raw) -> TrainingJobSpec | None:
    """Reads the spec; None if it cannot be read."""
    try:
        body = msgspec.json.decode(data, type=_TrainingJobBody)
        worker, launcher = body.et_replica_specs.worker, body.et_replica_specs.launcher
        templates = _template(worker.template, "worker"), _template(launcher.template, "launcher")
        return TrainingJobSpec(
            replicas=worker.replicas,
            annotations=(templates[0].annotations, templates[1].annotations),
            refusal=refusal([worker.replicas]),
            gangs=gangs_of({JobPodRole.WORKER: worker.template, JobPodRole.LAUNCHER: launcher.template}),
            least=_number(worker.min_replicas, worker, "minWorkers"),
            most=_number(worker.max_replicas, worker, "maxWorkers"),
            slots=min(max(body.slots_per_worker or 1, 1), MAX_SLOTS),
            worker=templates[0],
            launcher=templates[1],
            restarts=body.restart_policy == "OnFailure",
            backoff_limit=_DEFAULT_BACKOFF_LIMIT if body.backoff_limit is None else body.backoff_limit,
        )
    except (msgspec.MsgspecError, ValueError):
        return None


def _template(template: PodTemplate, role: str) -> TrainingTemplate:
    containers = template.containers()
    path = f"/spec/etReplicaSpecs/{role}/template/spec/containers"
    return TrainingTemplate(
        demand=template.demand(),
        annotations=template.annotations,
        container=containers[0].name if containers else "",
        command=" ".join(word for each in containers for word in each.words),
        variables={
            each.name: TrainingVariable(value=each.value, path=f"{path}/{number}/env/{place}/value")
            for number, container in enumerate(containers)
            for place, each in enumerate(container.env or ())
        },
    )


def _number(written: int | None, replicas: _TrainingReplicas, name: str) -> int | None:
    """A bound of the spec; if it is missing, the one in the environment, where Arena writes it as well."""
    if written is not None:
        return written
    for container in replicas.template.containers():
        for each in container.env or ():
            if each.name == name and (found := whole(each.value, MAX_LISTED_WORKERS)) is not None:
                return found
    return None


class TrainingJobObservation(JobObservation[TrainingJob, TrainingJobSpec]):
    """An observation of a TrainingJob."""

    launcher_suffix = "-launcher"

    def last_hosts(self) -> list[Host]:
        return [Host(f"{self.job.metadata.name}-worker-{self.asked.replicas - 1}")]

    def spec(self) -> Spec:
        asked, requested = self.asked, self.requested
        least = min(max(asked.least or requested, 1), requested)
        # Changing a variable of the launcher is enough to resize the job.
        size = asked.launcher.variables.get(SIZE)
        is_computed = _COMPUTED.search(asked.launcher.command) is not None
        sized_by_variable = is_computed and size is not None and size.value == str(asked.replicas)
        return Spec(
            framework=self.framework,
            min_workers=least,
            max_workers=min(max(asked.most or requested, requested), MAX_LISTED_WORKERS),
            requested_workers=requested,
            launcher_host=Host(f"{self.job.metadata.name}-launcher"),
            capabilities=ELASTIC,
            # A fixed number of processes in the command needs that many workers.
            least_to_start=least if sized_by_variable else requested,
        )

    def observed(self, spec: Spec, before: Observed) -> Observed:
        job, launcher = self.job, self.state.launcher
        observed = observed_launcher(launcher, self.known, before)
        # The operator creates no launcher while it believes that there is one, even if the pod is gone.
        believes = job.phase in (JobPhase.RUNNING, JobPhase.SCALING) or (job.phase is JobPhase.CREATED and job.launched)
        is_missing = launcher is None and believes and not job.suspended
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

    def reason_if_suspended(self) -> str:
        if self.job.suspended:
            return _SUSPENDED_BEFORE
        return FREED if self.job.phase is JobPhase.SUSPENDED else ""

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


def observe_training_job(state: JobState[TrainingJob], known: SupervisedJob | None, now: float) -> SupervisedJob | None:
    """Implements `JobKind.observe`."""
    asked = state.job.spec
    if asked is None:
        return None
    look = TrainingJobObservation(state, asked, known, now, framework=Framework.HOROVOD, own=OWN_ANNOTATIONS)
    return look.supervised()
