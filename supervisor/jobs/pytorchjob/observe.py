"""Reads from a PyTorchJob and its pods what the job asks for, and how it is. Pure."""

from dataclasses import replace

from supervisor.cluster.annotations import MAX_WAIT, REQUESTED
from supervisor.cluster.objects import PodPhase
from supervisor.domain.capability import Capability
from supervisor.domain.ids import Host
from supervisor.domain.job import Framework, Observed, Spec, SupervisedJob
from supervisor.jobs.kind import JobState
from supervisor.jobs.loss import with_loss_policy
from supervisor.jobs.observation import annotation, count, held_by_person, is_ours, observed_run
from supervisor.jobs.pytorchjob.objects import Condition, PyTorchJob, PyTorchJobSpec
from supervisor.jobs.suspension import is_freed, registered, result_of, suspended_here

State = JobState[PyTorchJob]

_CAPABILITIES = frozenset({Capability.MAKES_HOSTS, Capability.STARTS_RUNS, Capability.SIGNALS_PODS})


def supervised(state: State, known: SupervisedJob | None, now: float) -> SupervisedJob | None:
    """Returns the job as it is to be stored; see `supervisor.jobs.kind.JobKind.observe`."""
    job, asked = state.job, state.job.spec
    if asked is None or asked.replicas < 1 or job.deleted or held_by_person(state, suspended=job.suspended):
        return None
    if not is_ours(state, (job.annotations, *asked.annotations), known, suspended_here=suspended_here(job)):
        return None
    spec = spec_of(job, asked)
    if known is None or known.uid != job.metadata.uid:
        blank = Observed(launcher=job.metadata.name, instance="", registered_at=now)
        return registered(state.name, job, spec, _observed(state, asked, spec, None, blank), now)
    if is_freed(job, known):
        return None
    return replace(known, spec=spec, observed=_observed(state, asked, spec, known, known.observed))


def spec_of(job: PyTorchJob, asked: PyTorchJobSpec) -> Spec:
    """Returns what a job asks for, also one that was resumed with fewer workers."""
    annotations = [job.annotations, *asked.annotations]
    requested = requested_replicas(job, asked)
    spec = Spec(
        framework=Framework.TORCHRUN,
        min_workers=min(asked.least or requested, requested),
        max_workers=max(asked.most or 0, requested),
        requested_workers=requested,
        max_wait_seconds=float(count(annotation(annotations, MAX_WAIT))),
        capabilities=_CAPABILITIES | _ways_of_going_on(asked),
    )
    return with_loss_policy(spec, annotations)


def requested_replicas(job: PyTorchJob, asked: PyTorchJobSpec) -> int:
    """Returns how many pods a job asked for before it was resumed with fewer."""
    return max(count(job.annotations.get(REQUESTED)), asked.replicas)


def _ways_of_going_on(asked: PyTorchJobSpec) -> frozenset[Capability]:
    """Only members of the supervisor's rendezvous go on without a host, and only if the loss of a pod is no failure."""
    if asked.follows_rounds and asked.replaces_pods and asked.least is not None:
        return frozenset({Capability.GROWS, Capability.REPLACES_HOSTS})
    return frozenset({Capability.FIXED_HOSTS})


def _observed(
    state: State, asked: PyTorchJobSpec, spec: Spec, known: SupervisedJob | None, before: Observed
) -> Observed:
    is_same = before.running and before.instance == state.run_id
    running = _some_run(state) and bool(state.run_id) and (is_same or _has_begun(state, asked, spec))
    failed = state.job.has(Condition.FAILED)
    observed = replace(
        before,
        running=running,
        exit_code=int(failed) if before.running and not running else before.exit_code,
        hosts=_hosts(state, spec, running=running),
        result=before.result or result_of(state.job, succeeded=state.job.has(Condition.SUCCEEDED), failed=failed),
    )
    return observed_run(state.run_id, known, observed) if running else observed


def _some_run(state: State) -> bool:
    return any(pod.phase is PodPhase.RUNNING for pod in state.workers)


def _has_begun(state: State, asked: PyTorchJobSpec, spec: Spec) -> bool:
    """Whether a run has its pods; those that no node has room for are not waited for where the others are enough."""
    starting = [pod for pod in state.workers if pod.phase is PodPhase.PENDING and pod.node]
    running = [pod for pod in state.workers if pod.phase is PodPhase.RUNNING]
    return (
        len(state.workers) >= asked.replicas and not starting and len(running) >= min(spec.min_workers, asked.replicas)
    )


def _hosts(state: State, spec: Spec, *, running: bool) -> frozenset[Host]:
    """The pods that run, also those that are asked to end; before a start those that the operator would make."""
    asked, name = state.job.spec, state.job.metadata.name
    if running and not state.job.suspended:
        return frozenset(Host(pod.key.name) for pod in state.workers if pod.phase is PodPhase.RUNNING)
    masters = 0 if asked is None else asked.masters
    workers = (Host(f"{name}-worker-{number}") for number in range(spec.requested_workers - masters))
    return frozenset((*workers, *(Host(f"{name}-master-{number}") for number in range(masters))))
