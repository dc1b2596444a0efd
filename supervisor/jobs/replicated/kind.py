"""Observes jobs of replicas, and builds those kinds whose jobs have a run policy and replicas by role. Pure."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic

from servicekit.bounds import MAX_LISTED_WORKERS
from servicekit.kubernetes.client import Resource
from supervisor.cluster.annotations import MIN_WORKERS
from supervisor.cluster.objects import PodPhase
from supervisor.domain.ids import Host
from supervisor.domain.job import Capability, Framework, Observed, Phase, Result, Spec, SupervisedJob
from supervisor.jobs.annotated import asked_count
from supervisor.jobs.kind import JobKind, JobPodRole, JobState, KindContext, owned_by
from supervisor.jobs.observation import STATUS_OF, JobObservation, marked_result, observed_run
from supervisor.jobs.replicated.actions import ReplicatedJobActions, SpecMerger
from supervisor.jobs.replicated.objects import (
    JobCondition,
    R,
    ReplicaShape,
    ReplicatedJob,
    ReplicatedSpec,
    full_right,
    read_replicated_job,
)

_CAPABILITIES = frozenset({Capability.MAKES_HOSTS, Capability.STARTS_RUNS, Capability.SIGNALS_PODS})


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeBounds:
    """The sizes that a job may have, counted in pods, and what else its controller can do.

    Attributes:
        least: The fewest pods with which it goes on or resumes; None: all.
        most: The most pods that it can use; None: those that it asks for.
        capabilities: Those that not all jobs of replicas have.
    """

    least: int | None = None
    most: int | None = None
    capabilities: frozenset[Capability] = frozenset({Capability.FIXED_HOSTS})


def annotated_bounds(job: ReplicatedJob, asked: ReplicatedSpec) -> SizeBounds:
    """Returns the bounds of a job whose controller fails it, or counts a failure, as soon as a pod is deleted.

    Nothing leaves while it runs. It is resumed with as many workers as its annotation allows.
    """
    workers = asked_count([job.annotations, *asked.annotations], MIN_WORKERS)
    if not workers or asked.has_fixed_size:
        return SizeBounds()
    return SizeBounds(least=workers + asked.others)


def pod_host(job: str, role: str, index: int) -> Host:
    """Returns the host that a pod will be whose controller names it by its job, its role and its number in the role."""
    return Host(f"{job}-{role.lower()}-{index}")


def labelled_worker(labels: Mapping[str, str], *, label: str, values: Collection[str] = ()) -> JobPodRole | None:
    """The `role` of a kind where all pods with this label are workers: the run needs each of them.

    Args:
        labels: The labels of a pod.
        label: The label.
        values: The values that it may have; any but the empty one, if there are none.
    """
    found = labels.get(label)
    return JobPodRole.WORKER if found and (not values or found in values) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedRules(Generic[R]):
    """The differences between kinds of replicas when their jobs are observed.

    Attributes:
        framework: The framework that trains. Of most, only the next run starts from the checkpoint.
        bounds: Reads the bounds of a job.
        host: Returns the host that a pod will be: by the name of its job, its role and its number in the role.
        own: The annotations of the kind.
        observation: Observes one job; None for a `ReplicatedObservation`.
    """

    framework: Framework = Framework.TORCHRUN
    bounds: Callable[[R, ReplicatedSpec], SizeBounds] = annotated_bounds
    host: Callable[[str, str, int], Host] = pod_host
    own: frozenset[str] = frozenset()
    observation: "type[ReplicatedObservation[R]] | None" = None

    def observe(self, state: JobState[R], known: SupervisedJob | None, now: float) -> SupervisedJob | None:
        """See `supervisor.jobs.kind.JobKind.observe`."""
        asked = state.job.spec
        if asked is None:
            return None
        observation = ReplicatedObservation[R] if self.observation is None else self.observation
        return observation(state, asked, known, now, self).supervised()


class ReplicatedObservation(JobObservation[R, ReplicatedSpec]):
    """One look at a job of replicas."""

    def __init__(
        self,
        state: JobState[R],
        asked: ReplicatedSpec,
        known: SupervisedJob | None,
        now: float,
        rules: ReplicatedRules[R],
    ) -> None:
        super().__init__(state, asked, known, now, framework=rules.framework, own=rules.own)
        self._rules = rules

    def last_hosts(self) -> Iterator[Host]:
        for role, size in self.asked.sizes.items():
            for part, index in self.asked.places(role, size, max(0, size - 1)):
                yield self._rules.host(self.job.metadata.name, part, index)

    def spec(self) -> Spec:
        requested, bounds = self.requested, self._rules.bounds(self.job, self.asked)
        return Spec(
            framework=self.framework,
            min_workers=min(bounds.least or requested, requested),
            max_workers=min(max(bounds.most or 0, requested), MAX_LISTED_WORKERS),
            requested_workers=requested,
            capabilities=_CAPABILITIES | bounds.capabilities,
        )

    def observed(self, spec: Spec, before: Observed) -> Observed:
        run_id, has_failed = self.state.run_id, JobCondition.FAILED in self.job.conditions
        some_run = any(pod.phase is PodPhase.RUNNING for pod in self.state.workers)
        has_begun = (before.running and before.instance == run_id) or self.has_pods(
            min(spec.min_workers, self.asked.replicas)
        )
        running = some_run and bool(run_id) and has_begun
        observed = replace(
            before,
            running=running,
            exit_code=int(has_failed) if before.running and not running else before.exit_code,
            hosts=self.hosts(spec, running=running),
            result=before.result or self.result(),
        )
        if not running:
            return observed
        # A controller notes starts in whole seconds, so one that follows at once has the id of the run that has ended.
        ended = not before.running
        return observed_run(run_id, self.known, replace(observed, instance="") if ended else observed)

    def has_pods(self, enough: int) -> bool:
        """Whether a run has its pods. One that no node has room for is not waited for where the others are enough."""
        workers = self.state.workers
        starting = any(pod.phase is PodPhase.PENDING and pod.node for pod in workers)
        running = sum(pod.phase is PodPhase.RUNNING for pod in workers)
        return len(workers) >= self.asked.replicas and not starting and running >= enough

    def hosts(self, spec: Spec, *, running: bool) -> frozenset[Host]:
        """The pods that run, also those that are asked to end; before a start those that the controller would make.

        A controller deletes the pods of a suspended job one after the other: each would be a write, and nobody uses
        them.
        """
        asked, name = self.asked, self.job.metadata.name
        if running and not self.job.suspended:
            return frozenset(pod.host for pod in self.state.workers if pod.phase is PodPhase.RUNNING)
        sizes = {**asked.sizes, asked.scaled: spec.requested_workers - asked.others}
        places = (place for role, size in sizes.items() for place in asked.places(role, size))
        return frozenset(self._rules.host(name, role, index) for role, index in places)

    def result(self) -> Result | None:
        """How the job ended: by the supervisor's mark while it is suspended, otherwise as its controller says."""
        job, launcher = self.job, self.state.launcher
        if job.suspended and (marked := marked_result(job.annotations)) is not None:
            return marked
        # A launcher's exit counts before the operator has heard of it: a job that has succeeded is never suspended.
        if JobCondition.SUCCEEDED in job.conditions or (launcher is not None and launcher.succeeded):
            return Result.SUCCEEDED
        return Result.FAILED if JobCondition.FAILED in job.conditions else None

    def is_freed(self, known: SupervisedJob) -> bool:
        if self.job.suspended:
            return False
        if known.observed.result in STATUS_OF:
            return True
        # It keeps its hosts until its suspension is in place.
        in_place = not known.decision.hosts or known.observed.applied >= known.decision.generation
        return known.decision.phase is Phase.SUSPENDED and in_place


def resized_role(asked: ReplicatedSpec, pods: int, *, field: str) -> Mapping[str, object]:
    """The `size` for a `SpecMerger` of jobs with their roles in this field: the number of the other roles stays."""
    scaled = {asked.scaled: {"replicas": pods - asked.others}}
    return {field: scaled} if asked.scaled in asked.sizes else {}


def roles_kind(
    name: str,
    resource: Resource,
    shape: ReplicaShape,
    bounds: Callable[[ReplicatedJob, ReplicatedSpec], SizeBounds] = annotated_bounds,
) -> JobKind[ReplicatedJob]:
    """Builds a kind whose jobs have a run policy, and replicas by role: all roles are workers, as a run needs each."""
    roles = frozenset(role.lower() for role in shape.roles)

    def actions(context: KindContext[ReplicatedJob]) -> ReplicatedJobActions[ReplicatedJob]:
        size = partial(resized_role, field=shape.replicas)
        return ReplicatedJobActions(context, SpecMerger(context=context, size=size, policy="runPolicy"))

    return JobKind(
        name=name,
        resource=resource,
        rights=(full_right(resource),),
        pod_labels=frozenset({shape.role_label}),
        decode=partial(read_replicated_job, shape=shape),
        role=partial(labelled_worker, label=shape.role_label, values=roles),
        reference=partial(owned_by, name=name, resource=resource),
        observe=ReplicatedRules(bounds=bounds).observe,
        actions=actions,
    )
