"""Suspends, resumes and grows jobs of replicas by their spec; members of a rendezvous leave by its rounds."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Generic

from supervisor.cluster.annotations import REQUESTED, STATUS, SUSPENDED_BY
from supervisor.cluster.objects import Pod
from supervisor.domain.ids import Host
from supervisor.domain.job import Result
from supervisor.jobs import pods
from supervisor.jobs.kind import JobState, KindContext, Progress
from supervisor.jobs.observation import STATUS_OF, requested_workers
from supervisor.jobs.replicated.objects import Condition
from supervisor.jobs.replicated.observe import R
from supervisor.jobs.suspension import SUSPENSION

Annotations = Mapping[str, str | None]
"""Annotations to write; None removes one."""


class ReplicatedJobActions(ABC, Generic[R]):
    """See `supervisor.jobs.kind.JobActions`; a kind says how a suspension and a size are written."""

    standby_tasks: Mapping[str, Callable[[], Coroutine[Any, Any, None]]] = {}
    leader_tasks: Mapping[str, Callable[[], Coroutine[Any, Any, None]]] = {}

    def __init__(self, context: KindContext[R]) -> None:
        self._context = context

    @abstractmethod
    async def write_suspended(self, job: R, annotations: Mapping[str, str]) -> None:
        """Tells the controller to delete all pods, unless it has been told, and annotates the job. Raises ApiError."""

    @abstractmethod
    async def write_size(self, job: R, pods: int, annotations: Annotations) -> None:
        """Tells the controller to run so many pods, and annotates the job. Raises ApiError."""

    def is_released(self, state: JobState[R]) -> bool:
        """Whether no pod is left that uses a node or would be counted in the next run."""
        return not state.pods

    async def exclude(self, _state: JobState[R], _hosts: Collection[Host]) -> Progress:
        """Changes nothing: the next round leaves the hosts out, and their agents wait."""
        return Progress.IN_PLACE

    async def remove(self, _state: JobState[R], excluded: Collection[Pod]) -> None:
        await pods.delete(self._context.cluster.pods, excluded)

    async def suspend(self, state: JobState[R]) -> Progress:
        job = state.job
        if job.has(Condition.SUCCEEDED):
            return Progress.PENDING
        if not job.suspended or not job.annotations.items() >= SUSPENSION.items():
            await self.write_suspended(job, SUSPENSION)
            return Progress.PENDING
        return Progress.IN_PLACE if self.is_released(state) and job.still_suspended else Progress.PENDING

    async def resume(self, state: JobState[R], workers: int, requested: int) -> Progress:
        """Not before all pods are gone: one that is ending counts as failed, which may fail the job."""
        job = state.job
        if not job.suspended:
            return Progress.IN_PLACE
        if not self.is_released(state):
            return Progress.PENDING
        smaller = None if workers == requested else str(requested)
        await self.write_size(job, workers, {SUSPENDED_BY: None, STATUS: None, REQUESTED: smaller})
        return Progress.IN_PLACE

    async def grow(self, state: JobState[R], workers: int, _number: int, _seconds: float) -> None:
        """Takes nothing back: pods that no node has room for join when one has."""
        job, asked = state.job, state.job.spec
        if asked is None or asked.replicas >= workers:
            return
        requested = requested_workers(job.annotations, asked.replicas)
        await self.write_size(job, workers, {REQUESTED: None if workers >= requested else str(requested)})

    async def end(self, state: JobState[R], result: Result) -> None:
        marks = {**SUSPENSION, STATUS: STATUS_OF[result]}
        if not state.job.suspended or not state.job.annotations.items() >= marks.items():
            await self.write_suspended(state.job, marks)

    def growable(self, state: JobState[R]) -> int:
        job, asked = state.job, state.job.spec
        if asked is None or job.suspended or REQUESTED not in job.annotations:
            return 0
        if len(state.workers) != asked.replicas or not all(pod.running for pod in state.workers):
            return 0
        return requested_workers(job.annotations, asked.replicas) - asked.replicas


def only_logs_left(present: Collection[Pod]) -> bool:
    """Whether all pods have ended, and stay for their logs as those of used retries of a Kubernetes Job do."""
    return all(pod.over and pod.deleted_at is None for pod in present)
