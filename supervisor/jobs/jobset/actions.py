"""Suspends and resumes JobSets, and what JobSets are made of, by their spec."""

from collections.abc import Mapping
from typing import TypeVar

from supervisor.jobs.jobset.objects import JobSet
from supervisor.jobs.kind import JobState
from supervisor.jobs.replicated.actions import only_logs_left
from supervisor.jobs.replicated.merging import MergingJobActions
from supervisor.jobs.replicated.objects import ReplicatedSpec

S = TypeVar("S", bound=JobSet)


class JobSetActions(MergingJobActions[S]):
    """See `supervisor.jobs.kind.JobActions`."""

    def suspension(self, *, suspend: bool) -> Mapping[str, object]:
        return {"suspend": suspend}

    def size(self, _asked: ReplicatedSpec, _pods: int) -> Mapping[str, object]:
        """The controller's webhook accepts no other size, also of a suspended JobSet."""
        return {}

    def is_released(self, state: JobState[S]) -> bool:
        return only_logs_left(state.pods)
