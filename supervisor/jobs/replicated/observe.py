"""Reads from a job of replicas and its pods what it asks for, and how it is. Pure."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from servicekit.bounds import MAX_LISTED_WORKERS
from supervisor.cluster.objects import PodPhase
from supervisor.domain.ids import Host
from supervisor.domain.job import Capability, Framework, Observed, Result, Spec, SupervisedJob
from supervisor.jobs.annotated import mistyped_opt_in, with_annotations
from supervisor.jobs.kind import JobState
from supervisor.jobs.observation import (
    held_by_person,
    is_ours,
    observed_run,
    of_object,
    refused,
    refused_spec,
    requested_workers,
    unnamed,
)
from supervisor.jobs.replicated.objects import Condition, ReplicatedJob, ReplicatedSpec
from supervisor.jobs.suspension import is_freed, registered, result_of, suspended_here

R = TypeVar("R", bound=ReplicatedJob)

_CAPABILITIES = frozenset({Capability.MAKES_HOSTS, Capability.STARTS_RUNS, Capability.SIGNALS_PODS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The sizes that a job may have, counted in pods, and what else its controller can do.

    Attributes:
        least: The fewest pods with which it goes on or resumes; None: all.
        most: The most pods that it can use; None: those that it asks for.
        capabilities: Those that not all jobs of replicas have.
    """

    least: int | None = None
    most: int | None = None
    capabilities: frozenset[Capability] = frozenset({Capability.FIXED_HOSTS})


@dataclass(frozen=True, slots=True)
class Observer(Generic[R]):
    """Observes the jobs of one kind.

    Attributes:
        framework: What trains.
        bounds_of: Reads the bounds of a job.
        host_of: Returns the host that a pod will be: by the name of its job, its role and its number in the role.
        own: The annotations of the kind.
    """

    framework: Framework
    bounds_of: Callable[[R, ReplicatedSpec], Bounds]
    host_of: Callable[[str, str, int], Host]
    own: frozenset[str] = frozenset()

    def supervised(self, state: JobState[R], known: SupervisedJob | None, now: float) -> SupervisedJob | None:
        """Returns the job as it is to be stored; see `supervisor.jobs.kind.JobKind.observe`."""
        job, asked = state.job, state.job.spec
        if asked is None or asked.replicas < 1 or job.deleted or held_by_person(state, suspended=job.suspended):
            return None
        annotations = [job.annotations, *asked.annotations]
        ours = is_ours(state, annotations, known, suspended_here=suspended_here(job))
        why = self._refusal(job, asked) if ours else mistyped_opt_in(annotations)
        if not ours and not why:
            return None
        known = of_object(known, job.metadata)
        if why:
            return refused(state, known, refused_spec(self.framework, why), _result(job), now)
        spec = self._spec(job, asked, known)
        if known is None:
            blank = Observed(launcher=job.metadata.name, instance="", registered_at=now)
            return registered(state.name, job, spec, self._observed(state, asked, spec, None, blank), now)
        if known.spec.refused or is_freed(job, known):
            return None
        return replace(known, spec=spec, observed=self._observed(state, asked, spec, known, known.observed))

    def _refusal(self, job: R, asked: ReplicatedSpec) -> str:
        return asked.refusal or unnamed(job.metadata.name, self._last_hosts(job, asked))

    def _last_hosts(self, job: R, asked: ReplicatedSpec) -> Iterator[Host]:
        """The host of each role with the longest name."""
        for role, size in asked.sizes.items():
            for part, index in asked.places(role, size, max(0, size - 1)):
                yield self.host_of(job.metadata.name, part, index)

    def _spec(self, job: R, asked: ReplicatedSpec, known: SupervisedJob | None) -> Spec:
        """What a job asks for, also one that was resumed with fewer pods."""
        annotations = [job.annotations, *asked.annotations]
        requested, bounds = requested_workers(job.annotations, asked.replicas, known), self.bounds_of(job, asked)
        spec = Spec(
            framework=self.framework,
            min_workers=min(bounds.least or requested, requested),
            max_workers=min(max(bounds.most or 0, requested), MAX_LISTED_WORKERS),
            requested_workers=requested,
            capabilities=_CAPABILITIES | bounds.capabilities,
        )
        return with_annotations(spec, annotations, self.own)

    def _observed(
        self, state: JobState[R], asked: ReplicatedSpec, spec: Spec, known: SupervisedJob | None, before: Observed
    ) -> Observed:
        is_same = before.running and before.instance == state.run_id
        running = _some_run(state) and bool(state.run_id) and (is_same or _has_begun(state, asked, spec))
        failed = state.job.has(Condition.FAILED)
        observed = replace(
            before,
            running=running,
            exit_code=int(failed) if before.running and not running else before.exit_code,
            hosts=self._hosts(state, asked, spec, running=running),
            result=before.result or _result(state.job),
        )
        if not running:
            return observed
        # A controller notes starts in whole seconds, so one that follows at once has the id of the run that has ended.
        ended = not before.running
        return observed_run(state.run_id, known, replace(observed, instance="") if ended else observed)

    def _hosts(self, state: JobState[R], asked: ReplicatedSpec, spec: Spec, *, running: bool) -> frozenset[Host]:
        """The pods that run, also those that are asked to end; before a start those that the controller would make."""
        if running and not state.job.suspended:
            return frozenset(pod.host for pod in state.workers if pod.phase is PodPhase.RUNNING)
        sizes = {**asked.sizes, asked.scaled: spec.requested_workers - asked.others}
        name = state.job.metadata.name
        places = (place for role, size in sizes.items() for place in asked.places(role, size))
        return frozenset(self.host_of(name, role, index) for role, index in places)


def _result(job: ReplicatedJob) -> Result | None:
    return result_of(job, succeeded=job.has(Condition.SUCCEEDED), failed=job.has(Condition.FAILED))


def _some_run(state: JobState[R]) -> bool:
    return any(pod.phase is PodPhase.RUNNING for pod in state.workers)


def _has_begun(state: JobState[R], asked: ReplicatedSpec, spec: Spec) -> bool:
    """Whether a run has its pods; those that no node has room for are not waited for where the others are enough."""
    starting = [pod for pod in state.workers if pod.phase is PodPhase.PENDING and pod.node]
    running = [pod for pod in state.workers if pod.phase is PodPhase.RUNNING]
    enough = len(running) >= min(spec.min_workers, asked.replicas)
    return len(state.workers) >= asked.replicas and not starting and enough
