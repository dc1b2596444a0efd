"""Suspends, resumes and grows jobs of replicas by their spec; members of a rendezvous leave by its rounds."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from supervisor.cluster.annotations import REQUESTED, STATUS, SUSPENDED_BY
from supervisor.domain.ids import Host
from supervisor.domain.job import Result
from supervisor.jobs.kind import ActionProgress, JobState, KindContext, RootTasks
from supervisor.jobs.observation import STATUS_OF, SUSPENSION, requested_workers
from supervisor.jobs.replicated.objects import JobCondition, R, ReplicatedJob, ReplicatedSpec

AnnotationChanges = Mapping[str, str | None]
"""Annotations to write; None removes one."""

R_contra = TypeVar("R_contra", bound=ReplicatedJob, contravariant=True)


class SpecWriter(Protocol[R_contra]):
    """Writes the suspension and the size of a job of one kind. All methods raise ApiError."""

    async def suspend(self, job: R_contra, annotations: Mapping[str, str]) -> None:
        """Makes the controller delete all pods, unless it does so already, and annotates the job."""

    async def resize(self, job: R_contra, pods: int, annotations: AnnotationChanges) -> None:
        """Makes the controller run so many pods, also of a suspended job, and annotates the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecMerger(Generic[R]):
    """Implements `SpecWriter` by merging changes into the spec.

    Attributes:
        context: The jobs and their client.
        size: Returns the part of a spec that makes a run of so many pods; None for jobs of one size.
        policy: The part of a spec with the field `suspend`; empty if the spec itself has it.
        before_start: Called before a suspended job is resumed.
    """

    context: KindContext[R]
    size: Callable[[ReplicatedSpec, int], Mapping[str, object]] | None = None
    policy: str = ""
    before_start: Callable[[R], Awaitable[None]] | None = None

    async def suspend(self, job: R, annotations: Mapping[str, str]) -> None:
        # The size stays as it is: an operator may delete those pods alone that it would make.
        await self._merge(job, annotations, suspend=True)

    async def resize(self, job: R, pods: int, annotations: AnnotationChanges) -> None:
        if job.suspended and self.before_start is not None:
            await self.before_start(job)
        # A job that grows stays suspended if a person has suspended it meanwhile.
        size = {} if job.spec is None or self.size is None else self.size(job.spec, pods)
        await self._merge(job, annotations, suspend=False if job.suspended else None, size=size)

    async def _merge(
        self, job: R, annotations: AnnotationChanges, *, suspend: bool | None, size: Mapping[str, object] = {}
    ) -> None:
        spec = dict(size)
        if suspend is not None:
            spec |= {self.policy: {"suspend": suspend}} if self.policy else {"suspend": suspend}
        merged = await self.context.client.merge(job, {"spec": spec}, metadata={"annotations": annotations})
        self.context.wrote(merged)


def no_pods_left(state: JobState[R]) -> bool:
    """Whether no pod is left that uses a node or would be counted in the next run."""
    return not state.pods


def only_logs_left(state: JobState[R]) -> bool:
    """Whether all pods have ended, and stay for their logs as those of used retries of a Kubernetes Job do."""
    return all(pod.over and pod.deleted_at is None for pod in state.pods)


class ReplicatedJobActions(Generic[R]):
    """Implements `JobActions` for jobs that a field of their spec, or their size, suspends.

    Args:
        context: The jobs and their cluster.
        writer: Writes suspensions and sizes.
        is_released: Returns whether no pod is left of a run that has been suspended.
    """

    def __init__(
        self,
        context: KindContext[R],
        writer: SpecWriter[R],
        is_released: Callable[[JobState[R]], bool] = no_pods_left,
    ) -> None:
        self.standby_tasks: RootTasks = {}
        self.leader_tasks: RootTasks = {}
        self.context = context
        self.writer = writer
        self.is_released = is_released

    async def exclude(self, _state: JobState[R], _hosts: Collection[Host]) -> ActionProgress:
        """Changes nothing: the next round leaves the hosts out, and their agents wait."""
        return ActionProgress.IN_PLACE

    async def suspend(self, state: JobState[R]) -> ActionProgress:
        job = state.job
        if JobCondition.SUCCEEDED in job.conditions:
            return ActionProgress.PENDING
        if not job.suspended or not job.annotations.items() >= SUSPENSION.items():
            await self.writer.suspend(job, SUSPENSION)
            return ActionProgress.PENDING
        in_place = self.is_released(state) and JobCondition.SUSPENDED in job.conditions
        return ActionProgress.IN_PLACE if in_place else ActionProgress.PENDING

    async def resume(self, state: JobState[R], workers: int, requested: int) -> ActionProgress:
        """Resumes a job once all pods are gone.

        One that is ending counts as failed, which may fail the job; and a launcher would start without its workers,
        whose names are still taken.
        """
        job = state.job
        if not job.suspended:
            return ActionProgress.IN_PLACE
        if not self.is_released(state):
            return ActionProgress.PENDING
        smaller = None if workers == requested else str(requested)
        await self.writer.resize(job, workers, {SUSPENDED_BY: None, STATUS: None, REQUESTED: smaller})
        return ActionProgress.IN_PLACE

    async def grow(self, state: JobState[R], workers: int, _number: int, _seconds: float) -> None:
        """Takes nothing back: pods that no node has room for join when one has."""
        job, asked = state.job, state.job.spec
        if asked is None or asked.replicas >= workers:
            return
        requested = requested_workers(job.annotations, asked.replicas)
        await self.writer.resize(job, workers, {REQUESTED: None if workers >= requested else str(requested)})

    async def end(self, state: JobState[R], result: Result) -> None:
        marks = {**SUSPENSION, STATUS: STATUS_OF[result]}
        if not state.job.suspended or not state.job.annotations.items() >= marks.items():
            await self.writer.suspend(state.job, marks)

    def growable(self, state: JobState[R]) -> int:
        job, asked = state.job, state.job.spec
        if asked is None or job.suspended or not asked.discovers_hosts or REQUESTED not in job.annotations:
            return 0
        # The workers of the last request have to run before others are requested.
        if len(state.workers) != asked.replicas or not all(pod.running for pod in state.workers):
            return 0
        return requested_workers(job.annotations, asked.replicas) - asked.replicas
