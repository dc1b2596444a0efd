"""What a TrainingJob and its pods mean: pure, from what is seen to what the job asks for and what is so."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from supervisor.cluster.objects import Pod, PodPhase, opts_in
from supervisor.decide.plan import first_decision
from supervisor.domain.capability import Capability
from supervisor.domain.ids import Host, JobName, cluster_job
from supervisor.domain.job import Decision, Framework, Observed, Phase, Result, Spec, SupervisedJob
from supervisor.jobs.trainingjob.objects import (
    KIND,
    MAX_WAIT,
    OURS,
    REQUESTED,
    SCALE_OUT,
    STATUS,
    SUSPENDED_BY,
    TIMEOUT,
    JobPhase,
    TrainingJob,
    TrainingJobSpec,
    is_launcher,
    is_worker,
)

_KILLED = -9
"""Pods that are deleted take their processes with them."""

_SUSPENDED_BEFORE = "Was suspended before; waiting for capacity."
_FREED = "Its suspension was taken back; waiting for capacity."

_STOPPED = (Phase.STOPPING, Phase.SUSPENDED, Phase.TIMED_OUT)
"""What fails now was told to."""


@dataclass(frozen=True, slots=True)
class ObservedJob:
    """A job and the pods that it owns: by the owner's uid, as names and labels are the same in another namespace."""

    job: TrainingJob
    pods: Collection[Pod]

    @property
    def name(self) -> JobName:
        """As the supervisor knows it."""
        return cluster_job(self.job.metadata.namespace, KIND, self.job.metadata.name)

    @property
    def launcher(self) -> Pod | None:
        """The pod that runs the command."""
        return next((pod for pod in self.pods if is_launcher(pod.labels)), None)

    @property
    def workers(self) -> Iterable[Pod]:
        """The pods that are listed."""
        return (pod for pod in self.pods if is_worker(pod.labels))


def supervised(seen: ObservedJob, known: SupervisedJob | None, now: float) -> SupervisedJob | None:
    """The job as it is to be stored; None for one that is nobody's business here (any more).

    Args:
        seen: What is so.
        known: What is stored under the name.
        now: Unix seconds.
    """
    wish = seen.job.wish
    if wish is None or wish.replicas < 1 or seen.job.deleted or not _ours(seen, wish, known) or _held(seen.job):
        return None
    spec = spec_of(seen.job, wish)
    if known is None or known.uid != seen.job.metadata.uid:
        return _registered(seen, wish, spec, now)
    if _freed(seen.job, known):
        return None
    observed = _observed(seen, wish, spec, known, known.observed)
    return replace(known, spec=spec, observed=_missing(seen, observed, now))


def spec_of(job: TrainingJob, wish: TrainingJobSpec) -> Spec:
    """What a job asks for."""
    requested = max(_count(job.annotations.get(REQUESTED)), wish.replicas)
    least = min(max(wish.least or requested, 1), requested)
    return Spec(
        framework=Framework.HOROVOD,
        min_workers=least,
        max_workers=max(wish.most or requested, requested),
        requested_workers=requested,
        max_wait_seconds=float(_count(_annotation(job, wish, MAX_WAIT))),
        launcher_host=Host(f"{job.metadata.name}-launcher"),
        capabilities=frozenset(Capability),
        # A number that is written into the command waits for as many, whatever else it says.
        least_to_start=least if wish.sized_by_variable else requested,
    )


def worker_names(job: TrainingJob, count: int) -> list[Host]:
    """The workers that the operator makes for a start."""
    return [Host(f"{job.metadata.name}-worker-{number}") for number in range(count)]


def _registered(seen: ObservedJob, wish: TrainingJobSpec, spec: Spec, now: float) -> SupervisedJob | None:
    blank = Observed(launcher=f"{seen.job.metadata.name}-launcher", instance="", registered_at=now)
    observed = _missing(seen, _observed(seen, wish, spec, None, blank), now)
    if observed.result is not None:
        return None
    decision = first_decision(spec, observed, _waits_since(seen.job, now))
    if seen.job.suspended or seen.job.phase is JobPhase.SUSPENDED:
        reason = _SUSPENDED_BEFORE if seen.job.suspended else _FREED
        decision = Decision(generation=1, phase=Phase.SUSPENDED, reason=reason, waiting_since=now)
    return SupervisedJob(name=seen.name, uid=seen.job.metadata.uid, spec=spec, observed=observed, decision=decision)


def _waits_since(job: TrainingJob, now: float) -> float:
    """When the operator began to wait for what the job's present start needs: a job may have run for days before it."""
    began = job.metadata.creation_timestamp if job.phase is JobPhase.NEW else job.moved_at
    return now if began is None else min(now, began.timestamp())


def _freed(job: TrainingJob, known: SupervisedJob) -> bool:
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


def _missing(seen: ObservedJob, observed: Observed, now: float) -> Observed:
    if seen.launcher is not None or not seen.job.has_launcher:
        return replace(observed, launcher_lost_since=None)
    return observed if observed.launcher_lost_since is not None else replace(observed, launcher_lost_since=now)


def _ours(seen: ObservedJob, wish: TrainingJobSpec, known: SupervisedJob | None) -> bool:
    """Opted in; a job whose pods alone say so stays what it was while it has none, as when it is suspended."""
    before = known is not None and known.uid == seen.job.metadata.uid
    marked = seen.job.annotations.get(SUSPENDED_BY) == OURS
    return _opted_in(seen, wish) or (not seen.pods and (before or marked))


def _opted_in(seen: ObservedJob, wish: TrainingJobSpec) -> bool:
    annotated = [seen.job.annotations, wish.worker.annotations, wish.launcher.annotations]
    annotated += [pod.annotations for pod in seen.pods]
    return any(opts_in(each) for each in annotated)


def _held(job: TrainingJob) -> bool:
    """A person has suspended it, and will resume it."""
    return job.suspended and job.annotations.get(SUSPENDED_BY) != OURS


def _annotation(job: TrainingJob, wish: TrainingJobSpec, name: str) -> str | None:
    return next(
        (each[name] for each in (job.annotations, wish.worker.annotations, wish.launcher.annotations) if name in each),
        None,
    )


def _count(text: str | None) -> int:
    """0 for what is no number: nobody is to be stopped for a slip of the pen."""
    return (
        int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < len("1000000000") else 0
    )


def _observed(
    seen: ObservedJob, wish: TrainingJobSpec, spec: Spec, known: SupervisedJob | None, before: Observed
) -> Observed:
    launcher = seen.launcher
    running = launcher is not None and launcher.phase is PodPhase.RUNNING and launcher.exit_code is None
    present = replace(before, running=running, restarts=seen.job.restarts, hosts=_hosts(seen, spec, running=running))
    if launcher is None:
        code = _KILLED if before.running else before.exit_code
        present = replace(present, exit_code=code)
    else:
        present = replace(present, exit_code=_code(launcher), run=_run(launcher, known, before))
        present = replace(present, instance=launcher.metadata.uid)
    return replace(present, result=before.result or _result(seen, wish, known))


def _run(launcher: Pod, known: SupervisedJob | None, before: Observed) -> int:
    """A new launcher is a new run; a number that was ordered and never came up is not used again."""
    if launcher.metadata.uid == before.instance:
        return before.run
    return max(before.run + 1, 0 if known is None else known.decision.run)


def _hosts(seen: ObservedJob, spec: Spec, *, running: bool) -> frozenset[Host]:
    """The workers that run, also those that are asked to end; before a start those that the operator would make.

    So says the operator's own list in the launcher, while the lists in the job's status lag behind. Those of a ScaleOut
    it lists only once all of them run. Of a job that has just been suspended the operator deletes one pod after the
    other: each would be a write, and nobody uses them.
    """
    if not running or seen.job.suspended:
        return frozenset(worker_names(seen.job, spec.requested_workers))
    return frozenset(Host(pod.key.name) for pod in seen.workers if _listed(seen.job, pod))


def _listed(job: TrainingJob, pod: Pod) -> bool:
    name = pod.key.name
    added = SCALE_OUT not in pod.labels or name in job.targets or name in job.current
    return pod.phase is PodPhase.RUNNING and added


def _code(launcher: Pod) -> int | None:
    if launcher.exit_code is not None or not launcher.over:
        return launcher.exit_code
    return int(launcher.phase is PodPhase.FAILED)


def _result(seen: ObservedJob, wish: TrainingJobSpec, known: SupervisedJob | None) -> Result | None:
    job, launcher = seen.job, seen.launcher
    held = (job.suspended and job.phase is JobPhase.SUSPENDED) or job.phase is JobPhase.FAILED
    if job.annotations.get(STATUS) == TIMEOUT and held:
        return Result.TIMED_OUT
    # The launcher's word counts before the operator has heard it: a job that has succeeded is never suspended.
    if job.phase is JobPhase.SUCCEEDED or (launcher is not None and launcher.succeeded):
        return Result.SUCCEEDED
    stopped = known is not None and known.decision.phase in _STOPPED
    final = not wish.restarts or job.restarts >= wish.backoff_limit
    if job.phase is JobPhase.FAILED and final and not stopped:
        return Result.FAILED
    return None
