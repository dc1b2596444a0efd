"""What the operator does for a ScaleIn or ScaleOut: pure, and as dangerous as the real one."""

from dataclasses import dataclass

from msgspec.structs import replace

from simulator.et_operator.objects import Scale, ScaleStatus, Status, ToDelete
from simulator.et_operator.reconcile import Action, MakeWorker, Remove, View
from simulator.et_operator.vocabulary import Phase, ScalePhase, index_of, worker_name


class OperatorCrashedError(Exception):
    """The operator has ended itself; what did it is still there when it starts again."""


@dataclass(frozen=True, slots=True)
class Scaling:
    """What to do, the scaling's status after it, and the job's; `script` runs in the launcher before."""

    status: ScaleStatus
    job: Status
    actions: tuple[Action, ...] = ()
    script: str | None = None


def scale_in(view: View, scale: Scale) -> Scaling | None:
    """The next step of a ScaleIn; None: nothing, or not yet.

    Raises:
        OperatorCrashedError: It does not say what to delete.
    """
    if scale.status.phase == ScalePhase.NEW:
        if scale.spec.to_delete is None:
            raise OperatorCrashedError(f"ScaleIn {scale.metadata.name} has no toDelete")
        names = _victims(view, scale.spec.to_delete)
        target = [name for name in view.job.status.target_workers or () if name not in names]
        doomed = (pod for pod in view.workers if pod.name in names)
        job = replace(view.job.status, phase=Phase.SCALING.value, target_workers=target)
        return Scaling(ScaleStatus(ScalePhase.SCALING.value, names), job, tuple(Remove(pod) for pod in doomed))
    # Names are compared by how they begin: worker-1 is there for as long as worker-10 is.
    waits = any(pod.name.startswith(name) for pod in view.workers for name in scale.status.pods)
    return None if waits or scale.status.phase != ScalePhase.SCALING else _over(view, scale)


def scale_out(view: View, scale: Scale) -> Scaling | None:
    """The next step of a ScaleOut; None: nothing, or not yet."""
    if scale.status.phase == ScalePhase.NEW:
        count = scale.spec.to_add.count if scale.spec.to_add else 0
        target = view.job.status.target_workers or []
        first = 1 + max(map(index_of, (*target, *view.deleted)), default=-1)
        names = [worker_name(view.job.metadata.name, first + offset) for offset in range(count)]
        job = replace(view.job.status, phase=Phase.SCALING.value, target_workers=[*target, *names])
        made = tuple(MakeWorker(name) for name in names)
        return Scaling(ScaleStatus(ScalePhase.SCALING.value, names), job, made, scale.spec.script or "true")
    ready = view.running >= {*scale.status.pods}
    return _over(view, scale) if ready and scale.status.phase == ScalePhase.SCALING else None


def failed(view: View) -> Scaling:
    """A ScaleOut whose script failed: no pod of it is made, and the job goes on as before."""
    return Scaling(ScaleStatus(ScalePhase.FAILED.value), view.job.status)


def _over(view: View, scale: Scale) -> Scaling:
    job = replace(view.job.status, phase=Phase.RUNNING.value)
    return Scaling(replace(scale.status, phase=ScalePhase.SUCCEEDED.value), job)


def _victims(view: View, asked: ToDelete) -> list[str]:
    workers = sorted((pod.name for pod in view.workers), key=index_of)
    if not asked.pod_names:
        return workers[len(workers) - asked.count :]
    # Where no name is one of the job's, all of its workers are meant.
    return [name for name in workers if name in asked.pod_names] or workers
