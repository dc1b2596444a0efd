"""Derives the spec and the facts of a job from a TrainingJob and its pods. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from servicekit.bounds import MAX_LISTED_WORKERS, unix_seconds
from supervisor.cluster.annotations import OURS, SUSPENDED_BY
from supervisor.cluster.objects import Pod, PodPhase
from supervisor.decide.plan import first_decision
from supervisor.decide.reasons import freed
from supervisor.domain.ids import Host
from supervisor.domain.job import ELASTIC, Decision, Framework, Observed, Phase, Result, Spec, SupervisedJob
from supervisor.jobs.annotated import mistyped_opt_in, with_annotations
from supervisor.jobs.kind import JobState
from supervisor.jobs.observation import (
    STATUS_OF,
    STOPPED,
    held_by_person,
    is_ours,
    marked_result,
    missing_launcher,
    observed_launcher,
    of_object,
    refused,
    refused_spec,
    requested_workers,
    unnamed,
)
from supervisor.jobs.trainingjob.objects import OWN_ANNOTATIONS, SCALE_OUT, JobPhase, TrainingJob, TrainingJobSpec

State = JobState[TrainingJob]

_OF_THE_OPERATOR = (Phase.WAITING, Phase.RUNNING, Phase.SHRINKING)
"""The phases in which the operator starts the job and keeps it running."""

_SUSPENDED_BEFORE = "The job was already suspended; waiting for capacity."


def supervised(state: State, known: SupervisedJob | None, now: float) -> SupervisedJob | None:
    """See `supervisor.jobs.kind.JobKind.observe`."""
    job, asked = state.job, state.job.spec
    if asked is None or asked.replicas < 1 or job.deleted or held_by_person(state, suspended=job.suspended):
        return None
    annotations = list(_annotations(job, asked))
    ours = is_ours(state, annotations, known, suspended_here=job.annotations.get(SUSPENDED_BY) == OURS)
    why = _refusal(job, asked) if ours else mistyped_opt_in(annotations)
    if not ours and not why:
        return None
    known = of_object(known, job.metadata)
    if why:
        return refused(state, known, refused_spec(Framework.HOROVOD, why), _result(state, asked, known), now)
    spec = spec_of(job, asked, known)
    if known is None:
        return _registered(state, asked, spec, now)
    if known.spec.refused or _is_freed(job, known) or _is_suspended_by_nobody(state, known):
        return None
    observed = _observed(state, asked, spec, known, known.observed)
    return replace(known, spec=spec, observed=missing_launcher(observed, now, is_missing=_lacks_launcher(state)))


def _refusal(job: TrainingJob, asked: TrainingJobSpec) -> str:
    name = job.metadata.name
    last = (Host(f"{name}-launcher"), Host(f"{name}-worker-{asked.replicas - 1}"))
    return asked.refusal or unnamed(name, last)


def spec_of(job: TrainingJob, asked: TrainingJobSpec, known: SupervisedJob | None = None) -> Spec:
    """The spec of a job with its original size, also if it was resumed with fewer workers."""
    requested = requested_workers(job.annotations, asked.replicas, known)
    least = min(max(asked.least or requested, 1), requested)
    spec = Spec(
        framework=Framework.HOROVOD,
        min_workers=least,
        max_workers=min(max(asked.most or requested, requested), MAX_LISTED_WORKERS),
        requested_workers=requested,
        launcher_host=Host(f"{job.metadata.name}-launcher"),
        capabilities=ELASTIC,
        # A fixed number of processes in the command needs that many workers.
        least_to_start=least if asked.sized_by_variable else requested,
    )
    return with_annotations(spec, _annotations(job, asked), OWN_ANNOTATIONS)


def worker_names(job: TrainingJob, workers: int) -> list[Host]:
    """The names of the workers that the operator creates at a start."""
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
        reason = _SUSPENDED_BEFORE if job.suspended else freed()
        decision = Decision(generation=1, phase=Phase.SUSPENDED, reason=reason, waiting_since=now)
    return SupervisedJob(name=state.name, uid=job.metadata.uid, spec=spec, observed=observed, decision=decision)


def _waits_since(job: TrainingJob, now: float) -> float:
    """When the job's present start began to wait: the job may have run for days before."""
    began = job.metadata.creation_timestamp if job.phase is JobPhase.NEW else job.moved_at
    since = unix_seconds(began)
    return now if since is None else min(now, since)


def _is_freed(job: TrainingJob, known: SupervisedJob) -> bool:
    """Whether a user has changed the state of a job that is stored here, so that it must be registered again.

    That is so if a user resumed a job that had timed out, or started one that was about to be resumed here.
    """
    if job.suspended:
        return False
    if known.observed.result in STATUS_OF:
        return job.phase is not JobPhase.FAILED
    decision = known.decision
    adopted = decision.phase is Phase.SUSPENDED and not (decision.run or decision.hosts or known.observed.run)
    return adopted and job.phase is not JobPhase.SUSPENDED


def _is_suspended_by_nobody(state: State, known: SupervisedJob) -> bool:
    """Whether the operator has written Suspended after the annotation had gone: the job is registered again as freed.

    The operator does so from its older copy of a job that somebody suspends and resumes within 0.2 s, and never leaves
    Suspended by itself. In the other phases the supervisor suspends or resumes the job, or its queue holds it.
    """
    is_left_so = state.job.phase is JobPhase.SUSPENDED and not (state.job.suspended or state.pods)
    is_queued = state.admission is not None and bool(state.admission.held)
    return is_left_so and not is_queued and known.decision.phase in _OF_THE_OPERATOR


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
    """The running workers, including terminating ones; before a start, the workers that the operator would create.

    This matches the operator's list in the launcher; the lists in the job's status lag behind. The operator lists the
    pods of a ScaleOut only once all of them run. It deletes the pods of a suspended job one by one: those changes are
    ignored, as each would cause a write.
    """
    if not running or state.job.suspended:
        return frozenset(worker_names(state.job, spec.requested_workers))
    return frozenset(pod.host for pod in state.workers if _is_listed(state.job, pod))


def _is_listed(job: TrainingJob, pod: Pod) -> bool:
    name = pod.key.name
    added = SCALE_OUT not in pod.labels or name in job.targets or name in job.current
    return pod.phase is PodPhase.RUNNING and added


def _result(state: State, asked: TrainingJobSpec, known: SupervisedJob | None) -> Result | None:
    job, launcher = state.job, state.launcher
    held = (job.suspended and job.phase is JobPhase.SUSPENDED) or job.phase is JobPhase.FAILED
    if held and (marked := marked_result(job.annotations)) is not None:
        return marked
    # The launcher's exit counts before the operator has noticed it: a succeeded job must never be suspended.
    if job.phase is JobPhase.SUCCEEDED or (launcher is not None and launcher.succeeded):
        return Result.SUCCEEDED
    stopped = known is not None and known.decision.phase in STOPPED
    final = not asked.restarts or job.restarts >= asked.backoff_limit
    if job.phase is JobPhase.FAILED and final and not stopped:
        return Result.FAILED
    return None
