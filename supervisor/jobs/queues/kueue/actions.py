"""Acts on jobs of any kind while Kueue manages them.

Kueue takes back what others write into a job's field `suspend` within milliseconds, and restarts a running job whose
size changes. So a job is suspended and resumed by its Workload, and never resized while it runs.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Generic, TypeVar

from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.objects import Object
from supervisor.domain.ids import Host
from supervisor.domain.job import Result
from supervisor.jobs.kind import ActionProgress, J, JobActions, JobState
from supervisor.jobs.queues.kueue.workloads import Workload, Workloads

Q = TypeVar("Q", bound=Object)


class QueuedJobClient(ResourceClient[Q]):
    """Leaves a job's field `suspend` out of every write: the queue owns it, and takes back what others write there."""

    async def merge(
        self, read: Q, content: Mapping[str, object], part: str = "", *, metadata: Mapping[str, object] | None = None
    ) -> Q:
        def without_suspend(content: Mapping[str, object]) -> Mapping[str, object]:
            kept = {name: value for name, value in content.items() if name != "suspend"}
            return {name: without_suspend(each) if isinstance(each, Mapping) else each for name, each in kept.items()}

        return await super().merge(read, without_suspend(content), part, metadata=metadata)

    async def patch(self, read: Q, operations: Sequence[Mapping[str, object]]) -> Q:
        kept = [each for each in operations if not str(each.get("path")).endswith("/suspend")]
        return await super().patch(read, kept)


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
        self.standby_tasks, self.leader_tasks = own.standby_tasks, own.leader_tasks

    async def exclude(self, state: JobState[J], hosts: Collection[Host]) -> ActionProgress:
        return await self._own.exclude(state, hosts)

    async def suspend(self, state: JobState[J]) -> ActionProgress:
        workload = self._workloads.of(state)
        if workload is None:
            return await self._own.suspend(state)
        progress = await self._queued.suspend(state)
        if await self._deactivated(state, workload):
            return ActionProgress.PENDING
        # Kueue gives the quota up before the last pod is gone, or after it.
        return ActionProgress.PENDING if workload.reserves_quota else progress

    async def resume(self, state: JobState[J], workers: int, requested: int) -> ActionProgress:
        """A new size activates the Workload by itself, so it is written last; the same size does not."""
        workload = self._workloads.of(state)
        if workload is None:
            return await self._own.resume(state, workers, requested)
        progress = await self._queued.resume(state, workers, requested)
        if progress is not ActionProgress.PENDING and (workload.marked or not workload.active):
            await self._workloads.activate(workload, active=True)
        return progress

    async def grow(self, state: JobState[J], workers: int, number: int, seconds: float) -> None:
        if self._workloads.of(state) is None:
            await self._own.grow(state, workers, number, seconds)

    async def end(self, state: JobState[J], result: Result) -> None:
        workload = self._workloads.of(state)
        if workload is None:
            await self._own.end(state, result)
        else:
            await self._queued.end(state, result)
            await self._deactivated(state, workload)

    def growable(self, state: JobState[J]) -> int:
        return self._own.growable(state) if self._workloads.of(state) is None else 0

    async def _deactivated(self, state: JobState[J], workload: Workload) -> bool:
        """Deactivates a job's Workload; False if that was done before, or a job that has succeeded needs none."""
        succeeded = state.launcher is not None and state.launcher.succeeded
        if succeeded or (workload.marked and not workload.active):
            return False
        await self._workloads.activate(workload, active=False)
        return True
