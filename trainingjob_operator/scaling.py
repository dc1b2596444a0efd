"""Decides the next step of a ScaleIn or ScaleOut. Pure; one scaling of a job is in progress at a time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from trainingjob_operator.api import (
    JobStatus,
    Pod,
    Scale,
    ScalePhase,
    ScaleStatus,
    TrainingJob,
    index_of,
    worker_name,
)
from trainingjob_operator.changes import Change, RunScript, WriteScale


@dataclass(frozen=True, slots=True)
class ScaledRun:
    """The run that is scaled. Its status has the workers that it should have now, and that of the job those before."""

    job: TrainingJob
    launcher: Pod | None
    workers: Mapping[str, Pod]
    status: JobStatus

    @property
    def targets(self) -> Sequence[str]:
        """The workers that it should have."""
        return self.status.target_workers or []


@dataclass(frozen=True, slots=True)
class ScalingStep:
    """A step of a scaling.

    Attributes:
        status: The status of the job after it.
        before: The changes that must be made before that status is written.
        after: The changes that must be made when everything else is done.
        add_pods: The workers of a ScaleOut in progress, which are no targets yet.
        scale_out: The name of that ScaleOut.
        again_at: The instants at which time alone leads to another step (Unix seconds).
    """

    status: JobStatus
    before: tuple[Change, ...] = ()
    after: tuple[Change, ...] = ()
    add_pods: tuple[str, ...] = ()
    scale_out: str = ""
    again_at: tuple[float, ...] = ()


def next_scaling_step(scales: Sequence[Scale], run: ScaledRun, now: float) -> ScalingStep:
    """Returns the next step of the oldest scaling. Without one, or before the launcher runs, the status stays."""
    run = ScaledRun(run.job, run.launcher, run.workers, replace(run.status, current_scaler=None))
    if not scales or run.launcher is None or not run.launcher.running:
        return ScalingStep(run.status)
    # One that has begun goes first: another may be older by its name alone.
    scale = next((one for one in scales if one.begun), scales[0])
    if scale.spec.to_add is not None:
        return _scale_out(scale, scale.spec.to_add.count, run, now)
    return _scale_in(scale, run, now)


def failed_scale(scale: Scale, message: str) -> WriteScale:
    """Ends a scaling that cannot be done, and says why."""
    return WriteScale(scale, replace(scale.status, phase=ScalePhase.FAILED.value, message=message))


def _scale_in(scale: Scale, run: ScaledRun, now: float) -> ScalingStep:
    """Takes workers off the targets, after the script has run for them. It is done once their pods are gone."""
    before: tuple[Change, ...] = ()
    leaving = scale.status.to_delete_pods
    if not scale.begun:
        leaving, problem = _leaving(scale, run.targets, run.job.min_replicas)
        if problem:
            return ScalingStep(run.status, before=(failed_scale(scale, problem),))
        begun = ScaleStatus(phase=ScalePhase.SCALING.value, to_delete_pods=leaving, started_at=now)
        before = (*_script(scale, run, sorted(leaving, key=index_of)), WriteScale(scale, begun))
    left = [name for name in run.targets if name not in leaving]
    if scale.begun and not any(name in run.workers for name in leaving):
        return ScalingStep(replace(run.status, target_workers=left), after=(_succeeded(scale),))
    return ScalingStep(replace(run.status, target_workers=left, current_scaler=_full_name("ScaleIn", scale)), before)


def _leaving(scale: Scale, targets: Sequence[str], least: int) -> tuple[list[str], str]:
    """The workers that a ScaleIn removes, or why it removes none. Names that are no workers never mean others."""
    asked = scale.spec.to_delete
    if asked is None or (asked.count <= 0 and not asked.pod_names):
        return [], "The ScaleIn names neither a number of workers nor their names (toDelete)."
    if asked.pod_names:
        unknown = [name for name in asked.pod_names if name not in targets]
        if unknown:
            return [], f"The job has no worker {unknown[0]}."
        leaving = list(dict.fromkeys(asked.pod_names))
        count = len(leaving)
    else:
        leaving = sorted(targets, key=index_of, reverse=True)[: asked.count]
        count = asked.count
    if len(targets) - count < least:
        return [], f"The job has {len(targets)} workers and needs {least} (minReplicas)."
    return leaving, ""


def _scale_out(scale: Scale, count: int, run: ScaledRun, now: float) -> ScalingStep:
    """Creates workers beside the targets, and makes them targets once all of them run."""
    job, status, targets = run.job, run.status, run.targets
    if not scale.begun:
        problem = ""
        if count <= 0:
            problem = "The ScaleOut adds no workers (toAdd.count)."
        elif len(targets) + count > job.max_replicas:
            problem = f"The job has {len(targets)} workers and may have {job.max_replicas} (maxReplicas)."
        if problem:
            return ScalingStep(status, before=(failed_scale(scale, problem),))
        first = status.next_index or 0
        added = [worker_name(job.metadata.name, first + number) for number in range(count)]
        begun = ScaleStatus(phase=ScalePhase.SCALING.value, add_pods=added, started_at=now)
        status = replace(status, next_index=first + count, current_scaler=_full_name("ScaleOut", scale))
        return ScalingStep(status, (WriteScale(scale, begun),), add_pods=tuple(added), scale_out=scale_id(scale))
    added = scale.status.add_pods
    if set(added) <= set(job.status.target_workers or ()):
        # They have become targets, and the operator ended before it said so. It says so before it replaces one of them.
        return ScalingStep(status, before=(_succeeded(scale),))
    waiting = [name for name in added if name not in targets and not _runs(run, name)]
    if not waiting:
        grown = [*targets, *(name for name in added if name not in targets)]
        script = _script(scale, run, added)
        return ScalingStep(replace(status, target_workers=grown), before=script, after=(_succeeded(scale),))
    ends_at = (scale.status.started_at or now) + scale.timeout_seconds
    if now >= ends_at:
        problem = f"{waiting[0]} does not run after {scale.timeout_seconds} s."
        return ScalingStep(status, before=(failed_scale(scale, problem),))
    scaling = replace(status, current_scaler=_full_name("ScaleOut", scale))
    return ScalingStep(scaling, add_pods=tuple(added), scale_out=scale_id(scale), again_at=(ends_at,))


def scale_id(scale: Scale) -> str:
    """The value of the label by which a pod belongs to a ScaleOut."""
    return scale.metadata.name[:63].rstrip("-._")


def _script(scale: Scale, run: ScaledRun, workers: Sequence[str]) -> tuple[Change, ...]:
    """Its script, if it has one. It runs again only if the operator ends before the next write of a status."""
    if not scale.spec.script or run.launcher is None:
        return ()
    return (RunScript(run.launcher, scale, tuple(workers)),)


def _succeeded(scale: Scale) -> WriteScale:
    return WriteScale(scale, replace(scale.status, phase=ScalePhase.SUCCEEDED.value, message=""))


def _runs(run: ScaledRun, name: str) -> bool:
    return name in run.workers and run.workers[name].running


def _full_name(kind: str, scale: Scale) -> str:
    return f"{kind}:{scale.metadata.namespace}/{scale.metadata.name}"
