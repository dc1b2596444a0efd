"""The operator's handling of ScaleIn and ScaleOut, as pure functions, and as dangerous as the real one."""

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from simulator.et_operator.names import ScalePhase, TrainingJobPhase, index_of, worker_name
from simulator.et_operator.objects import Scale, ScaleStatus, ToDelete, TrainingJobStatus
from simulator.et_operator.reconcile import Action, MakeWorker, OperatedJob, Remove


class OperatorCrashedError(Exception):
    """The operator has crashed. The object that caused it is still there when it restarts."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """The actions, and the new status of the scaling and of the job.

    Before that, `script` runs in the launcher. If `listed` has hosts and there is no script, the host list is
    rewritten.
    """

    status: ScaleStatus
    job: TrainingJobStatus
    actions: tuple[Action, ...] = ()
    script: str = ""
    listed: tuple[str, ...] = ()


def scale_in(snapshot: OperatedJob, scale: Scale) -> Scaling | None:
    """Return the next step of a ScaleIn, or None if there is nothing to do yet.

    Raises:
        OperatorCrashedError: It does not say what to delete.
    """
    if scale.status.phase == ScalePhase.NEW:
        if scale.spec.to_delete is None:
            raise OperatorCrashedError(f"ScaleIn {scale.metadata.name} has no toDelete")
        names = _victims(snapshot, scale.spec.to_delete)
        target = [name for name in snapshot.job.status.target_workers or () if name not in names]
        doomed = (pod for pod in snapshot.workers if pod.name in names)
        job = replace(snapshot.job.status, phase=TrainingJobPhase.SCALING.value, target_workers=target)
        return Scaling(ScaleStatus(ScalePhase.SCALING.value, names), job, tuple(Remove(pod) for pod in doomed))
    # Names are compared by prefix: worker-1 counts as present as long as worker-10 exists.
    waits = any(pod.name.startswith(name) for pod in snapshot.workers for name in scale.status.pods)
    return None if waits or scale.status.phase != ScalePhase.SCALING else _over(snapshot, scale)


def next_scale_out(snapshot: OperatedJob, scale_outs: Iterable[Scale]) -> Scale | None:
    """Return the ScaleOut in progress, otherwise the latest one that is not over."""
    ours = [scale for scale in scale_outs if scale.is_for(snapshot.job) and not scale.over]
    current = snapshot.job.status.current_scaler
    if snapshot.job.status.phase == TrainingJobPhase.SCALING:
        return next((scale for scale in ours if full_name(scale) == current), None)
    return max(ours, key=lambda scale: scale.metadata.version, default=None)


def full_name(scale: Scale) -> str:
    """Return its name as in the job's status."""
    return f"ScaleOut:{scale.metadata.namespace}/{scale.metadata.name}"


def scale_out(snapshot: OperatedJob, scale: Scale, now: float) -> Scaling | None:
    """Return the next step of a ScaleOut at that instant (Unix seconds), or None if there is nothing to do yet.

    Meanwhile the operator ignores the other workers. Pods that another ScaleOut created under one of its names are not
    counted, and are deleted if it fails.
    """
    job, status = snapshot.job.status, scale.status
    if job.phase != TrainingJobPhase.SCALING:
        status = replace(status, phase=ScalePhase.SCALING.value, start_time=status.start_time or now)
        return Scaling(status, replace(job, phase=TrainingJobPhase.SCALING.value, current_scaler=full_name(scale)))
    count = scale.spec.to_add.count if scale.spec.to_add else 0
    if not status.add_pods:
        return Scaling(replace(status, add_pods=_next_names(snapshot, count)), job)
    there = {pod.name for pod in snapshot.workers}
    if missing := [name for name in status.add_pods if name not in there]:
        return Scaling(status, job, tuple(MakeWorker(name, scale.metadata.name) for name in missing))
    running = [pod for pod in snapshot.workers if pod.runs and pod.scale_out == scale.metadata.name]
    if len(running) < count:
        return failed(snapshot, scale) if now > (status.start_time or now) + scale.spec.timeout else None
    return _added(snapshot, scale)


def failed(snapshot: OperatedJob, scale: Scale) -> Scaling:
    """Fail a ScaleOut that took too long or whose script failed. Every pod with one of its names is deleted."""
    doomed = (Remove(pod) for pod in snapshot.workers if pod.name in scale.status.add_pods)
    return Scaling(replace(scale.status, phase=ScalePhase.FAILED.value), unscaled(snapshot.job.status), tuple(doomed))


def unscaled(job: TrainingJobStatus) -> TrainingJobStatus:
    """Return the job's status without a scaling in progress."""
    return replace(job, phase=TrainingJobPhase.RUNNING.value, current_scaler=None)


def _next_names(snapshot: OperatedJob, count: int) -> list[str]:
    """Return the names after the highest target, even if they are in use."""
    first = 1 + max(map(index_of, snapshot.job.status.target_workers or ()), default=-1)
    return [worker_name(snapshot.job.metadata.name, first + offset) for offset in range(count)]


def _added(snapshot: OperatedJob, scale: Scale) -> Scaling:
    """Finish a ScaleOut. It lists its workers and those that ran before it, even if they were lost since then."""
    job, added = snapshot.job.status, scale.status.add_pods
    return Scaling(
        replace(scale.status, phase=ScalePhase.SUCCEEDED.value),
        replace(unscaled(job), target_workers=[*(job.target_workers or ()), *added]),
        script=scale.spec.script,
        listed=(*(job.current_workers or ()), *added),
    )


def _over(snapshot: OperatedJob, scale: Scale) -> Scaling:
    return Scaling(replace(scale.status, phase=ScalePhase.SUCCEEDED.value), unscaled(snapshot.job.status))


def _victims(snapshot: OperatedJob, asked: ToDelete) -> list[str]:
    workers = sorted((pod.name for pod in snapshot.workers), key=index_of)
    if not asked.pod_names:
        return workers[len(workers) - asked.count :]
    # If no name belongs to the job, all of its workers are deleted.
    return [name for name in workers if name in asked.pod_names] or workers
