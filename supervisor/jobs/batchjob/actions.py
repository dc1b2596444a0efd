"""Suspends and resumes Indexed Jobs by their spec."""

from collections.abc import Mapping

from supervisor.jobs.kind import JobState, Progress
from supervisor.jobs.replicated.actions import only_logs_left
from supervisor.jobs.replicated.merging import MergingJobActions
from supervisor.jobs.replicated.objects import ReplicatedJob, ReplicatedSpec

_State = JobState[ReplicatedJob]


class BatchJobActions(MergingJobActions[ReplicatedJob]):
    """See `supervisor.jobs.kind.JobActions`."""

    async def resume(self, state: _State, workers: int, requested: int) -> Progress:
        """Clears the time of the last start first.

        The controller counts a deadline from that start until it has noted the next one, and would fail the job.
        """
        job = state.job
        if job.suspended and job.started_at is not None and self.is_released(state):
            cleared = await self._context.client.merge(job, {"status": {"startTime": None}}, "status")
            self._context.jobs.wrote(cleared)
        return await super().resume(state, workers, requested)

    def suspension(self, *, suspend: bool) -> Mapping[str, object]:
        return {"suspend": suspend}

    def size(self, _asked: ReplicatedSpec, pods: int) -> Mapping[str, object]:
        """The API server accepts another number of completions only together with the parallelism."""
        return {"parallelism": pods, "completions": pods}

    def is_released(self, state: _State) -> bool:
        return only_logs_left(state.pods)
