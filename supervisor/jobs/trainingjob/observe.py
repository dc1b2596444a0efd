"""What a TrainingJob and its pods say of what the job asks for, and of what is so. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from supervisor.cluster.annotations import MAX_WAIT, OURS, REQUESTED, STATUS, SUSPENDED_BY, TIMEOUT
from supervisor.cluster.objects import Pod, PodPhase
from supervisor.decide.plan import first_decision
from supervisor.domain.capability import Capability
from supervisor.domain.ids import Host
from supervisor.domain.job import Decision, Framework, Observed, Phase, Result, Spec, SupervisedJob
from supervisor.jobs.kind import JobState
from supervisor.jobs.observation import (
    STOPPED,
    annotation,
    count,
    is_ours,
    missing_launcher,
    observed_launcher,
)
from supervisor.jobs.trainingjob.objects import SCALE_OUT, JobPhase, TrainingJob, TrainingJobSpec

State = JobState[TrainingJob]

_SUSPENDED_BEFORE = "Was suspended before; waiting for capacity."
_FREED = "Its suspension was taken back; waiting for capacity."


def supervised(state: State, known: SupervisedJob | None, now: float) -> SupervisedJob | None:
    """Returns the job as it is to be stored; see `supervisor.jobs.kind.JobKind.observe`."""
    job, asked = state.job, state.job.spec
    if asked is None or asked.replicas < 1 or job.deleted or _is_held(job):
        return None
    suspended_here = job.annotations.get(SUSPENDED_BY) == OURS
    if not is_ours(state, _annotations(job, asked), known, suspended_here=suspended_here):
        return None
    spec = spec_of(job, asked)
    if known is None or known.uid != job.metadata.uid:
        return _registered(state, asked, spec, now)
    if _is_freed(job, known):
        return None
    observed = _observed(state, asked, spec, known, known.observed)
    return replace(known, spec=spec, observed=missing_launcher(observed, now, is_missing=_lacks_launcher(state)))


def spec_of(job: TrainingJob, asked: TrainingJobSpec) -> Spec:
    """Returns what a job asks for, also one that was resumed with fewer workers."""
    requested = max(count(job.annotations.get(REQUESTED)), asked.replicas)
    least = min(max(asked.least or requested, 1), requested)
    return Spec(
        framework=Framework.HOROVOD,
        min_workers=least,
        max_workers=max(asked.most or requested, requested),
        requested_workers=requested,
        max_wait_seconds=float(count(annotation(_annotations(job, asked), MAX_WAIT))),
        launcher_host=Host(f"{job.metadata.name}-launcher"),
        capabilities=frozenset(Capability),
        # A number that is written into the command waits for as many, whatever else it says.
        least_to_start=least if asked.sized_by_variable else requested,
    )


def worker_names(job: TrainingJob, workers: int) -> list[Host]:
    """Returns the workers that the operator makes for a start."""
    return [Host(f"{job.metadata.name}-worker-{number}") for number in range(workers)]


def _annotations(job: TrainingJob, asked: TrainingJobSpec) -> Iterable[Mapping[str, str]]:
    return (job.annotations, asked.worker.annotations, asked.launcher.annotations)


def _registered(state: State, asked: TrainingJobSpec, spec: Spec, now: float) -> SupervisedJob | None:
    job = state.job
    blank = Observed(launcher=f"{job.metadata.name}-launcher", instance="", registered_at=now)
    observed = _observed(state, asked, spec, None, blank)
    observed = missing_launcher(observed, now, is_missing=_lacks_launcher(state))
    if observed.result is not None:
        return None
    decision = first_decision(spec, observed, _waits_since(job, now))
    if job.suspended or job.phase is JobPhase.SUSPENDED:
        reason = _SUSPENDED_BEFORE if job.suspended else _FREED
        decision = Decision(generation=1, phase=Phase.SUSPENDED, reason=reason, waiting_since=now)
    return SupervisedJob(name=state.name, uid=job.metadata.uid, spec=spec, observed=observed, decision=decision)


def _waits_since(job: TrainingJob, now: float) -> float:
    """When the operator began to wait for what the job's present start needs: a job may have run for days before it."""
    began = job.metadata.creation_timestamp if job.phase is JobPhase.NEW else job.moved_at
    return now if began is None else min(now, began.timestamp())


def _is_freed(job: TrainingJob, known: SupervisedJob) -> bool:
    """Whether a person has made something else of a job than what is stored: it is taken up anew.

    A person resumes a job that timed out, or has brought its operator to start one that was still to be resumed here.
    """
    if job.suspended:
        return False
    if known.observed.result is Result.TIMED_OUT:
        return job.phase is not JobPhase.FAILED
    decision = known.decision
    adopted = decision.phase is Phase.SUSPENDED and not (decision.run or decision.hosts or known.observed.run)
    return adopted and job.phase is not JobPhase.SUSPENDED


def _is_held(job: TrainingJob) -> bool:
    """Whether a person has suspended the job, and will resume it."""
    return job.suspended and job.annotations.get(SUSPENDED_BY) != OURS


def _lacks_launcher(state: State) -> bool:
    return state.launcher is None and state.job.has_launcher


def _observed(
    state: State, asked: TrainingJobSpec, spec: Spec, known: SupervisedJob | None, before: Observed
) -> Observed:
    observed = observed_launcher(state.launcher, known, before)
    return replace(
        observed,
        restarts=state.job.restarts,
        hosts=_hosts(state, spec, running=observed.running),
        result=before.result or _result(state, asked, known),
    )


def _hosts(state: State, spec: Spec, *, running: bool) -> frozenset[Host]:
    """The workers that run, also those that are asked to end; before a start those that the operator would make.

    So says the operator's own list in the launcher, while the lists in the job's status lag behind. Those of a ScaleOut
    it lists only once all of them run. Of a job that has just been suspended the operator deletes one pod after the
    other: each would be a write, and nobody uses them.
    """
    if not running or state.job.suspended:
        return frozenset(worker_names(state.job, spec.requested_workers))
    return frozenset(Host(pod.key.name) for pod in state.workers if _is_listed(state.job, pod))


def _is_listed(job: TrainingJob, pod: Pod) -> bool:
    name = pod.key.name
    added = SCALE_OUT not in pod.labels or name in job.targets or name in job.current
    return pod.phase is PodPhase.RUNNING and added


def _result(state: State, asked: TrainingJobSpec, known: SupervisedJob | None) -> Result | None:
    job, launcher = state.job, state.launcher
    held = (job.suspended and job.phase is JobPhase.SUSPENDED) or job.phase is JobPhase.FAILED
    if job.annotations.get(STATUS) == TIMEOUT and held:
        return Result.TIMED_OUT
    # The launcher's exit counts before the operator has heard of it: a job that has succeeded is never suspended.
    if job.phase is JobPhase.SUCCEEDED or (launcher is not None and launcher.succeeded):
        return Result.SUCCEEDED
    stopped = known is not None and known.decision.phase in STOPPED
    final = not asked.restarts or job.restarts >= asked.backoff_limit
    if job.phase is JobPhase.FAILED and final and not stopped:
        return Result.FAILED
    return None
