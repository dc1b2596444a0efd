"""The operator's next step for a job: a pure function from what it sees to its actions and the new status.

It does what the real one was observed to do. That includes that it never reads minReplicas, never checks whether others
have changed the status, and cannot leave Suspended.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from simulator.et_operator.names import ReconcileStep, TrainingJobPhase, index_of, worker_name
from simulator.et_operator.objects import OperatedTrainingJob, OperatorPod, TrainingJobCondition, TrainingJobStatus
from simulator.et_operator.settings import Flaw, OperatorSettings


@dataclass(frozen=True, slots=True)
class OperatedJob:
    """A job as the operator's cache shows it."""

    job: OperatedTrainingJob
    workers: tuple[OperatorPod, ...]
    launcher: OperatorPod | None
    hosts: frozenset[str] | None
    """The hosts that it believes to be on the launcher's list; None = it has never written it."""
    deleted: frozenset[str] = frozenset()
    """Recently deleted workers."""

    @property
    def running(self) -> frozenset[str]:
        return frozenset(pod.name for pod in self.workers if pod.runs)

    @property
    def pods(self) -> tuple[OperatorPod, ...]:
        return (*self.workers, *([self.launcher] if self.launcher else []))


@dataclass(frozen=True, slots=True)
class MakeConfig:
    """Create the ConfigMap with these hosts, unless it exists."""

    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MakeWorker:
    """Create this worker's pod, possibly for a ScaleOut."""

    name: str
    scale_out: str = ""


@dataclass(frozen=True, slots=True)
class MakeLauncher:
    """Create the launcher's pod. Its list comes from the ConfigMap and is assumed to contain these hosts."""

    hosts: frozenset[str]


@dataclass(frozen=True, slots=True)
class Remove:
    """Delete a pod without a grace period."""

    pod: OperatorPod


@dataclass(frozen=True, slots=True)
class WriteHosts:
    """Rewrite the host list in the launcher with a command."""

    launcher: OperatorPod
    hosts: frozenset[str]


Action = MakeConfig | MakeWorker | MakeLauncher | Remove | WriteHosts


@dataclass(frozen=True, slots=True)
class ReconcileOutcome:
    """The actions to take after `delay` seconds, if they are still needed, and the status to write after them."""

    reason: str
    delay: float
    status: TrainingJobStatus
    actions: tuple[Action, ...] = ()


def reconcile(snapshot: OperatedJob, settings: OperatorSettings, now: str) -> ReconcileOutcome | None:
    """Return the next step, or None if there is nothing to do.

    Args:
        snapshot: The job as it is.
        settings: The operator's settings.
        now: The time stamp for the status.
    """
    outcome = _step(snapshot, settings)
    status = _stamped(_counted(snapshot, outcome.status if outcome else snapshot.job.status), now)
    if outcome is None and (
        status == snapshot.job.status or snapshot.job.status.phase in (TrainingJobPhase.NEW, TrainingJobPhase.SUSPENDED)
    ):
        return None
    if outcome is None:
        return ReconcileOutcome("status", settings.pace.status, status)
    return ReconcileOutcome(outcome.reason, outcome.delay, status, outcome.actions)


def _step(snapshot: OperatedJob, settings: OperatorSettings) -> ReconcileOutcome | None:
    status, pace = snapshot.job.status, settings.pace
    if snapshot.job.suspension_asked:
        return _suspend(snapshot, pace.suspend)
    match status.phase:
        case TrainingJobPhase.NEW | TrainingJobPhase.CREATED:
            return _start(snapshot, settings)
        case TrainingJobPhase.RUNNING | TrainingJobPhase.SCALING:
            return _end_of_launcher(snapshot, pace.launcher_end) or _keep(snapshot, settings)
        case TrainingJobPhase.FAILED if snapshot.job.restarts_left:
            return _restart(snapshot, pace.restart)
        case TrainingJobPhase.FAILED | TrainingJobPhase.SUCCEEDED:
            return _clean(snapshot)
        case _:  # Suspended: the operator cannot leave it.
            return None


def _suspend(snapshot: OperatedJob, delay: float) -> ReconcileOutcome | None:
    # Also jobs that have finished long ago.
    if snapshot.job.status.phase == TrainingJobPhase.SUSPENDED and not snapshot.pods:
        return None
    return ReconcileOutcome(
        "suspend", delay, _in_phase(snapshot.job.status, TrainingJobPhase.SUSPENDED), _removed(snapshot.pods)
    )


def _start(snapshot: OperatedJob, settings: OperatorSettings) -> ReconcileOutcome | None:
    status = snapshot.job.status
    if not status.has(ReconcileStep.WORKERS_CREATED):
        return _make_workers(snapshot, settings)
    if not status.has(ReconcileStep.LAUNCHER_CREATED):
        return _make_launcher(snapshot) or _replace(snapshot, settings)
    if snapshot.launcher is not None and snapshot.launcher.runs:
        return ReconcileOutcome("running", 0.0, _in_phase(status, TrainingJobPhase.RUNNING))
    return _end_of_launcher(snapshot, settings.pace.launcher_end)


def _make_workers(snapshot: OperatedJob, settings: OperatorSettings) -> ReconcileOutcome:
    job = snapshot.job
    wanted = [worker_name(job.metadata.name, index) for index in range(job.spec.et_replica_specs.worker.replicas)]
    # The target of an earlier start stays unless it was removed, whatever the spec wants now.
    target = job.status.target_workers or wanted
    made = [*target]
    if Flaw.EXTRA_WORKER in settings.flaws and not job.status.restart_count:
        made.append(worker_name(job.metadata.name, 1 + max(map(index_of, target))))
    there = {pod.name for pod in snapshot.workers}
    status = replace(_in_phase(job.status, TrainingJobPhase.CREATED), target_workers=[*target])
    return ReconcileOutcome(
        "start",
        0.0,
        _done(status, ReconcileStep.WORKERS_CREATED),
        (MakeConfig(tuple(target)), *(MakeWorker(name) for name in made if name not in there)),
    )


def _make_launcher(snapshot: OperatedJob) -> ReconcileOutcome | None:
    if not snapshot.running >= {*(snapshot.job.status.target_workers or ())}:
        return None
    status = _done(_done(snapshot.job.status, ReconcileStep.WORKERS_READY), ReconcileStep.LAUNCHER_CREATED)
    actions = () if snapshot.launcher else (MakeLauncher(snapshot.running),)
    return ReconcileOutcome("launch", 0.0, status, actions)


def _end_of_launcher(snapshot: OperatedJob, delay: float) -> ReconcileOutcome | None:
    """Handle a launcher that has ended. For a launcher that is gone, the real operator waits forever, as Running."""
    status = snapshot.job.status
    if not status.has(ReconcileStep.LAUNCHER_CREATED) or snapshot.launcher is None:
        return None
    if snapshot.launcher.status.phase == "Failed":
        return ReconcileOutcome("failed", delay, _in_phase(status, TrainingJobPhase.FAILED))
    if snapshot.launcher.status.phase == "Succeeded":
        return ReconcileOutcome("succeeded", delay, _in_phase(status, TrainingJobPhase.SUCCEEDED))
    return None


def _keep(snapshot: OperatedJob, settings: OperatorSettings) -> ReconcileOutcome | None:
    if _scales_out(snapshot.job.status):
        return None
    if settings.commands and snapshot.launcher and snapshot.launcher.runs and snapshot.hosts != snapshot.running:
        action = WriteHosts(snapshot.launcher, snapshot.running)
        return ReconcileOutcome("hosts", settings.pace.hosts, snapshot.job.status, (action,))
    return _replace(snapshot, settings)


def _replace(snapshot: OperatedJob, settings: OperatorSettings) -> ReconcileOutcome | None:
    """Replace lost workers, if the job asks for it, with numbers that were never used."""
    job, target = snapshot.job, snapshot.job.status.target_workers or []
    alive = {pod.name for pod in snapshot.workers if not pod.ended}
    lost = [name for name in target if name not in alive]
    if not lost or job.spec.et_replica_specs.worker.restart_policy != "Always":
        return None
    first = 1 + max(map(index_of, (*target, *alive, *snapshot.deleted)))
    new = [worker_name(job.metadata.name, first + offset) for offset in range(len(lost))]
    status = replace(job.status, target_workers=[*(name for name in target if name in alive), *new])
    ended = _removed(pod for pod in snapshot.workers if pod.ended)
    made = (MakeWorker(name) for name in new)
    return ReconcileOutcome("replace", settings.pace.replacement, status, (*ended, *made))


def _restart(snapshot: OperatedJob, delay: float) -> ReconcileOutcome:
    before = snapshot.job.status
    again = TrainingJobStatus(
        TrainingJobPhase.CREATED.value, restart_count=(before.restart_count or 0) + 1, start_time=before.start_time
    )
    return ReconcileOutcome("restart", delay, again, _removed(snapshot.pods))


def _clean(snapshot: OperatedJob) -> ReconcileOutcome | None:
    policy = snapshot.job.spec.clean_pod_policy
    pods = [pod for pod in snapshot.pods if policy == "All" or (policy == "Running" and not pod.ended)]
    return ReconcileOutcome("clean", 0.0, snapshot.job.status, _removed(pods)) if pods else None


def _removed(pods: Iterable[OperatorPod]) -> tuple[Remove, ...]:
    return tuple(Remove(pod) for pod in pods)


def _in_phase(status: TrainingJobStatus, phase: TrainingJobPhase) -> TrainingJobStatus:
    status = replace(status, phase=phase.value)
    return _done(status, phase.value)


def _done(status: TrainingJobStatus, what: str) -> TrainingJobStatus:
    others = [one for one in status.conditions or () if one.type != what]
    return replace(status, conditions=[*others, TrainingJobCondition(what, "True", reason=f"TrainingJob{what}")])


def _counted(snapshot: OperatedJob, status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status with the workers that the operator believes in, including recently deleted ones."""
    if _scales_out(status):
        return status
    if status.phase in (TrainingJobPhase.NEW, TrainingJobPhase.CREATED) and not status.has(
        ReconcileStep.WORKERS_CREATED
    ):
        return status
    names = {*snapshot.running, *(snapshot.deleted & {*(status.current_workers or ())})}
    launcher = 1 if snapshot.launcher is not None and snapshot.launcher.runs else 0
    return replace(
        status,
        current_workers=sorted(names, key=index_of),
        replica_statuses={"Launcher": {"active": launcher}, "Worker": {"active": len(snapshot.running)}},
    )


def _scales_out(status: TrainingJobStatus) -> bool:
    """Whether a ScaleOut is in progress, during which the operator ignores the present workers."""
    return status.phase == TrainingJobPhase.SCALING and bool(status.current_scaler)


def _stamped(status: TrainingJobStatus, now: str) -> TrainingJobStatus:
    conditions = [
        one if one.last_transition_time else replace(one, last_transition_time=now, last_update_time=now)
        for one in status.conditions or ()
    ]
    start = status.start_time or (now if status.phase else None)
    return replace(status, conditions=conditions if status.conditions is not None else None, start_time=start)
