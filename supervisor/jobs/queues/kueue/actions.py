"""The actions on jobs of any kind while Kueue manages them.

Kueue takes back what others write into a job's field `suspend` within milliseconds, and restarts a running job whose
size changes. So a job is suspended and resumed by its Workload, and never resized while it runs.
"""

from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Generic

from supervisor.cluster.objects import Pod
from supervisor.domain.ids import Host
from supervisor.domain.job import Result
from supervisor.jobs.kind import J, JobActions, JobState, Progress
from supervisor.jobs.queues.kueue.workload import Workload
from supervisor.jobs.queues.kueue.workloads import Workloads


class KueueActions(Generic[J]):
    """Implements `JobActions` by those of a kind.

    Args:
        own: The kind's actions on jobs that no queue manages.
        queued: The kind's actions that leave the field `suspend` alone.
        workloads: The Workloads of the jobs that Kueue manages.
    """

    def __init__(self, own: JobActions[J], queued: JobActions[J], workloads: Workloads) -> None:
        self._own = own
        self._queued = queued
        self._workloads = workloads

    @property
    def standby_tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        return self._own.standby_tasks

    @property
    def leader_tasks(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        return self._own.leader_tasks

    async def exclude(self, state: JobState[J], hosts: Collection[Host]) -> Progress:
        return await self._own.exclude(state, hosts)

    async def remove(self, state: JobState[J], pods: Collection[Pod]) -> None:
        await self._own.remove(state, pods)

    async def suspend(self, state: JobState[J]) -> Progress:
        workload = self._workload(state)
        if workload is None:
            return await self._own.suspend(state)
        progress = await self._queued.suspend(state)
        if await self._deactivated(state, workload):
            return Progress.PENDING
        # Kueue gives the quota up before the last pod is gone, or after it.
        return Progress.PENDING if workload.reserves_quota else progress

    async def resume(self, state: JobState[J], workers: int, requested: int) -> Progress:
        """A new size activates the Workload by itself, so it is written last; the same size does not."""
        workload = self._workload(state)
        if workload is None:
            return await self._own.resume(state, workers, requested)
        progress = await self._queued.resume(state, workers, requested)
        if progress is not Progress.PENDING and (workload.marked or not workload.active):
            await self._workloads.activate(workload)
        return progress

    async def grow(self, state: JobState[J], workers: int, number: int, seconds: float) -> None:
        if self._workload(state) is None:
            await self._own.grow(state, workers, number, seconds)

    async def end(self, state: JobState[J], result: Result) -> None:
        workload = self._workload(state)
        if workload is None:
            await self._own.end(state, result)
        else:
            await self._queued.end(state, result)
            await self._deactivated(state, workload)

    def growable(self, state: JobState[J]) -> int:
        return self._own.growable(state) if self._workload(state) is None else 0

    def _workload(self, state: JobState[J]) -> Workload | None:
        return self._workloads.of(state)

    async def _deactivated(self, state: JobState[J], workload: Workload) -> bool:
        """Deactivates a job's Workload; False if that was done before, or a job that has succeeded needs none."""
        succeeded = state.launcher is not None and state.launcher.succeeded
        if succeeded or (workload.marked and not workload.active):
            return False
        await self._workloads.deactivate(workload)
        return True
