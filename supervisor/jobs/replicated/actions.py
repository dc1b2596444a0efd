"""Suspends, resumes and grows jobs of replicas by their spec; members of a rendezvous leave by its rounds."""

from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

from supervisor.cluster.annotations import REQUESTED, STATUS, SUSPENDED_BY
from supervisor.cluster.objects import Pod
from supervisor.domain.ids import Host
from supervisor.domain.job import Result
from supervisor.jobs import pods
from supervisor.jobs.kind import KindContext, Progress
from supervisor.jobs.observation import STATUS_OF
from supervisor.jobs.replicated.objects import Condition, ReplicatedJob, ReplicatedSpec, Shape
from supervisor.jobs.replicated.observe import State, requested_replicas
from supervisor.jobs.suspension import SUSPENSION


class ReplicatedJobActions:
    """See `supervisor.jobs.kind.JobActions`."""

    standby_tasks: Mapping[str, Callable[[], Coroutine[Any, Any, None]]] = {}
    leader_tasks: Mapping[str, Callable[[], Coroutine[Any, Any, None]]] = {}

    def __init__(self, context: KindContext[ReplicatedJob], shape: Shape) -> None:
        self._context = context
        self._shape = shape

    async def exclude(self, _state: State, _hosts: Collection[Host]) -> Progress:
        """Changes nothing: the next round leaves the hosts out, and their agents wait."""
        return Progress.IN_PLACE

    async def remove(self, _state: State, excluded: Collection[Pod]) -> None:
        await pods.delete(self._context.cluster.pods, excluded)

    async def suspend(self, state: State) -> Progress:
        job = state.job
        if job.has(Condition.SUCCEEDED):
            return Progress.PENDING
        if not job.suspended or not job.annotations.items() >= SUSPENSION.items():
            await self._suspend(job, SUSPENSION)
            return Progress.PENDING
        return Progress.PENDING if state.pods or not job.has(Condition.SUSPENDED) else Progress.IN_PLACE

    async def resume(self, state: State, workers: int, requested: int) -> Progress:
        """Not before all pods are gone: one that is ending counts as failed, which may fail the job."""
        job, asked = state.job, state.job.spec
        if not job.suspended or asked is None:
            return Progress.IN_PLACE
        if state.pods:
            return Progress.PENDING
        annotations = {SUSPENDED_BY: None, STATUS: None, REQUESTED: None if workers == requested else str(requested)}
        await self._merge(job, {"runPolicy": {"suspend": False}, **self._replicas(asked, workers)}, annotations)
        return Progress.IN_PLACE

    async def grow(self, state: State, workers: int, _number: int, _seconds: float) -> None:
        """Takes nothing back: pods that no node has room for join when one has."""
        job, asked = state.job, state.job.spec
        if asked is None or asked.replicas >= workers:
            return
        requested = requested_replicas(job, asked)
        await self._merge(
            job, self._replicas(asked, workers), {REQUESTED: None if workers >= requested else str(requested)}
        )

    async def end(self, state: State, result: Result) -> None:
        marks = {**SUSPENSION, STATUS: STATUS_OF[result]}
        if not state.job.suspended or not state.job.annotations.items() >= marks.items():
            await self._suspend(state.job, marks)

    def growable(self, state: State) -> int:
        job, asked = state.job, state.job.spec
        if asked is None or job.suspended or REQUESTED not in job.annotations:
            return 0
        if len(state.workers) != asked.replicas or not all(pod.running for pod in state.workers):
            return 0
        return requested_replicas(job, asked) - asked.replicas

    async def _suspend(self, job: ReplicatedJob, marks: Mapping[str, str]) -> None:
        await self._merge(job, {"runPolicy": {"suspend": True}}, marks)

    async def _merge(
        self, job: ReplicatedJob, spec: Mapping[str, object], annotations: Mapping[str, str | None]
    ) -> None:
        merged = await self._context.client.merge(job, {"spec": spec}, metadata={"annotations": annotations})
        self._context.jobs.wrote(merged)

    def _replicas(self, asked: ReplicatedSpec, size: int) -> Mapping[str, object]:
        """The part of the spec that makes a run of so many pods; the number of the other roles stays."""
        scaled = {self._shape.scaled: {"replicas": size - asked.others}}
        return {self._shape.replicas: scaled} if self._shape.scaled in asked.sizes else {}
