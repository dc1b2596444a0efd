"""What an MPIJob and its pods say of what the job asks for, and of what is so. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from supervisor.cluster.annotations import MAX_WORKERS, MIN_WORKERS
from supervisor.cluster.objects import Pod, PodPhase
from supervisor.decide.grant import least_to_start
from supervisor.domain.ids import Host
from supervisor.domain.job import Capability, Framework, Observed, Result, Spec, SupervisedJob
from supervisor.jobs.annotated import mistyped_opt_in, with_annotations
from supervisor.jobs.kind import JobState
from supervisor.jobs.mpijob.objects import Condition, MpiJob, MpiJobSpec
from supervisor.jobs.observation import (
    annotation,
    count,
    held_by_person,
    is_ours,
    observed_launcher,
    of_object,
    refused,
    refused_spec,
    requested_workers,
    unnamed,
)
from supervisor.jobs.suspension import is_freed, registered, result_of, suspended_here

State = JobState[MpiJob]

_CAPABILITIES = frozenset(
    {
        Capability.MAKES_HOSTS,
        Capability.STARTS_RUNS,
        Capability.GROWS,
        Capability.REPLACES_HOSTS,
        Capability.SIGNALS_PODS,
    }
)


def supervised(state: State, known: SupervisedJob | None, now: float) -> SupervisedJob | None:
    """Returns the job as it is to be stored; see `supervisor.jobs.kind.JobKind.observe`."""
    job, asked = state.job, state.job.spec
    if asked is None or asked.replicas < 1 or job.deleted or held_by_person(state, suspended=job.suspended):
        return None
    annotations = list(_annotations(job, asked))
    ours = is_ours(state, annotations, known, suspended_here=suspended_here(job))
    why = _refusal(job, asked) if ours else mistyped_opt_in(annotations)
    if not ours and not why:
        return None
    known = of_object(known, job.metadata)
    if why:
        return refused(state, known, refused_spec(Framework.HOROVOD, why), _result(state), now)
    spec = spec_of(state, asked, known)
    if known is None:
        blank = Observed(launcher=f"{job.metadata.name}-launcher", instance="", registered_at=now)
        return registered(state.name, job, spec, _observed(state, asked, spec, None, blank), now)
    if known.spec.refused or is_freed(job, known):
        return None
    return replace(known, spec=spec, observed=_observed(state, asked, spec, known, known.observed))


def _refusal(job: MpiJob, asked: MpiJobSpec) -> str:
    name = job.metadata.name
    last = (Host(f"{name}-launcher"), Host(f"{name}-worker-{asked.replicas - 1}"))
    return asked.refusal or unnamed(name, last)


def spec_of(state: State, asked: MpiJobSpec, known: SupervisedJob | None = None) -> Spec:
    """Returns what a job asks for, also one that was resumed with fewer workers."""
    job, annotations = state.job, list(_annotations(state.job, asked))
    requested = requested_workers(job.annotations, asked.replicas, known)
    least = (count(annotation(annotations, MIN_WORKERS)) if asked.discovers_hosts else 0) or requested
    least = min(least, requested)
    spec = Spec(
        framework=Framework.HOROVOD,
        min_workers=least,
        max_workers=max(count(annotation(annotations, MAX_WORKERS)), requested),
        requested_workers=requested,
        launcher_host=None if state.launcher is None else state.launcher.host,
        capabilities=_CAPABILITIES,
        least_to_start=requested if asked.has_fixed_size else least,
    )
    return with_annotations(spec, annotations)


def _annotations(job: MpiJob, asked: MpiJobSpec) -> Iterable[Mapping[str, str]]:
    return (job.annotations, asked.worker.annotations, asked.launcher.annotations)


def _observed(state: State, asked: MpiJobSpec, spec: Spec, known: SupervisedJob | None, before: Observed) -> Observed:
    observed = observed_launcher(_launcher(state, before), known, before)
    began = before.running and before.instance == observed.instance
    running = observed.running and (began or _has_begun(state, asked, spec))
    return replace(
        observed,
        running=running,
        restarts=state.job.restarts,
        hosts=_hosts(state, spec, running=running),
        result=before.result or _result(state),
    )


def _launcher(state: State, before: Observed) -> Pod | None:
    """The launcher of the present run or of a later one; one that has failed before them may outlive it."""
    launcher = state.launcher
    is_earlier = launcher is not None and launcher.over and before.instance not in ("", launcher.metadata.uid)
    return None if is_earlier else launcher


def _has_begun(state: State, asked: MpiJobSpec, spec: Spec) -> bool:
    """Whether a run has its workers: the operator starts the launcher beside them, not after them.

    Those that no node has room for are not waited for where the others are enough.
    """
    if state.job.has(Condition.RUNNING):
        return True
    starting = [pod for pod in state.workers if pod.phase is PodPhase.PENDING and pod.node]
    running = [pod for pod in state.workers if pod.phase is PodPhase.RUNNING]
    return len(state.workers) >= asked.replicas and not starting and len(running) >= least_to_start(spec)


def _hosts(state: State, spec: Spec, *, running: bool) -> frozenset[Host]:
    """The workers that run, also those that are asked to end; before a start those that the operator would make.

    The operator deletes the pods of a suspended job one after the other: each would be a write, and nobody uses them.
    """
    if not running or state.job.suspended:
        name = state.job.metadata.name
        return frozenset(Host(f"{name}-worker-{number}") for number in range(spec.requested_workers))
    return frozenset(pod.host for pod in state.workers if pod.phase is PodPhase.RUNNING)


def _result(state: State) -> Result | None:
    job, launcher = state.job, state.launcher
    # The launcher's exit counts before the operator has heard of it: a job that has succeeded is never suspended.
    succeeded = job.has(Condition.SUCCEEDED) or (launcher is not None and launcher.succeeded)
    return result_of(job, succeeded=succeeded, failed=job.has(Condition.FAILED) and job.completed)
