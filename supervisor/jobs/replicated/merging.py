"""Suspends and resizes jobs by merging changes into their spec."""

from abc import abstractmethod
from collections.abc import Mapping

from supervisor.jobs.replicated.actions import Annotations, ReplicatedJobActions
from supervisor.jobs.replicated.objects import ReplicatedSpec
from supervisor.jobs.replicated.observe import R


class MergingJobActions(ReplicatedJobActions[R]):
    """See `supervisor.jobs.kind.JobActions`."""

    @abstractmethod
    def suspension(self, *, suspend: bool) -> Mapping[str, object]:
        """Returns the part of a spec that suspends or resumes the job."""

    @abstractmethod
    def size(self, asked: ReplicatedSpec, pods: int) -> Mapping[str, object]:
        """Returns the part of a spec that makes a run of so many pods."""

    async def write_suspended(self, job: R, annotations: Mapping[str, str]) -> None:
        await self._merge(job, self.suspension(suspend=True), annotations)

    async def write_size(self, job: R, pods: int, annotations: Annotations) -> None:
        # A job that grows stays suspended if a person has suspended it meanwhile.
        resumed = self.suspension(suspend=False) if job.suspended else {}
        size = {} if job.spec is None else self.size(job.spec, pods)
        await self._merge(job, {**resumed, **size}, annotations)

    async def _merge(self, job: R, spec: Mapping[str, object], annotations: Annotations) -> None:
        merged = await self._context.client.merge(job, {"spec": spec}, metadata={"annotations": annotations})
        self._context.jobs.wrote(merged)
