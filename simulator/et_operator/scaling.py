"""What the operator does for a ScaleIn or ScaleOut: pure, and as dangerous as the real one."""

from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from simulator.et_operator.names import Phase, ScalePhase, index_of, worker_name
from simulator.et_operator.objects import Scale, ScaleStatus, Status, ToDelete
from simulator.et_operator.reconcile import Action, JobSnapshot, MakeWorker, Remove


class OperatorCrashedError(Exception):
    """The operator has ended itself; what did it is still there when it starts again."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """What to do, the scaling's status after it, and the job's.

    Before that `script` runs in the launcher; where `listed` has hosts and there is no script, its list is rewritten.
    """

    status: ScaleStatus
    job: Status
    actions: tuple[Action, ...] = ()
    script: str = ""
    listed: tuple[str, ...] = ()


def scale_in(snapshot: JobSnapshot, scale: Scale) -> Scaling | None:
    """The next step of a ScaleIn; None: nothing, or not yet.

    Raises:
        OperatorCrashedError: It does not say what to delete.
    """
    if scale.status.phase == ScalePhase.NEW:
        if scale.spec.to_delete is None:
            raise OperatorCrashedError(f"ScaleIn {scale.metadata.name} has no toDelete")
        names = _victims(snapshot, scale.spec.to_delete)
        target = [name for name in snapshot.job.status.target_workers or () if name not in names]
        doomed = (pod for pod in snapshot.workers if pod.name in names)
        job = replace(snapshot.job.status, phase=Phase.SCALING.value, target_workers=target)
        return Scaling(ScaleStatus(ScalePhase.SCALING.value, names), job, tuple(Remove(pod) for pod in doomed))
    # Names are compared by how they begin: worker-1 is there for as long as worker-10 is.
    waits = any(pod.name.startswith(name) for pod in snapshot.workers for name in scale.status.pods)
    return None if waits or scale.status.phase != ScalePhase.SCALING else _over(snapshot, scale)


def next_scale_out(snapshot: JobSnapshot, scale_outs: Iterable[Scale]) -> Scale | None:
    """The one that is worked on; where there is none, of those that nobody is done with the one that was made last."""
    ours = [scale for scale in scale_outs if scale.is_for(snapshot.job) and not scale.over]
    current = snapshot.job.status.current_scaler
    if snapshot.job.status.phase == Phase.SCALING:
        return next((scale for scale in ours if full_name(scale) == current), None)
    return max(ours, key=lambda scale: scale.metadata.version, default=None)


def full_name(scale: Scale) -> str:
    """As the job's status has it."""
    return f"ScaleOut:{scale.metadata.namespace}/{scale.metadata.name}"


def scale_out(snapshot: JobSnapshot, scale: Scale, now: float) -> Scaling | None:
    """The next step of a ScaleOut at that instant (Unix seconds); None: nothing, or not yet.

    While it goes on, nobody looks at the other workers. What another one has made under one of its names it neither
    counts nor spares when it fails.
    """
    job, status = snapshot.job.status, scale.status
    if job.phase != Phase.SCALING:
        status = replace(status, phase=ScalePhase.SCALING.value, start_time=status.start_time or now)
        return Scaling(status, replace(job, phase=Phase.SCALING.value, current_scaler=full_name(scale)))
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


def failed(snapshot: JobSnapshot, scale: Scale) -> Scaling:
    """A ScaleOut that took too long, or whose script failed: whoever has one of its names is deleted."""
    doomed = (Remove(pod) for pod in snapshot.workers if pod.name in scale.status.add_pods)
    return Scaling(replace(scale.status, phase=ScalePhase.FAILED.value), unscaled(snapshot.job.status), tuple(doomed))


def unscaled(job: Status) -> Status:
    """The job's status when nothing is worked on any more."""
    return replace(job, phase=Phase.RUNNING.value, current_scaler=None)


def _next_names(snapshot: JobSnapshot, count: int) -> list[str]:
    """After the highest of the targets, whoever has those names already."""
    first = 1 + max(map(index_of, snapshot.job.status.target_workers or ()), default=-1)
    return [worker_name(snapshot.job.metadata.name, first + offset) for offset in range(count)]


def _added(snapshot: JobSnapshot, scale: Scale) -> Scaling:
    """Those that ran before it began are listed with its own: one that was lost since then is listed still."""
    job, added = snapshot.job.status, scale.status.add_pods
    return Scaling(
        replace(scale.status, phase=ScalePhase.SUCCEEDED.value),
        replace(unscaled(job), target_workers=[*(job.target_workers or ()), *added]),
        script=scale.spec.script,
        listed=(*(job.current_workers or ()), *added),
    )


def _over(snapshot: JobSnapshot, scale: Scale) -> Scaling:
    return Scaling(replace(scale.status, phase=ScalePhase.SUCCEEDED.value), unscaled(snapshot.job.status))


def _victims(snapshot: JobSnapshot, asked: ToDelete) -> list[str]:
    workers = sorted((pod.name for pod in snapshot.workers), key=index_of)
    if not asked.pod_names:
        return workers[len(workers) - asked.count :]
    # Where no name is one of the job's, all of its workers are meant.
    return [name for name in workers if name in asked.pod_names] or workers
