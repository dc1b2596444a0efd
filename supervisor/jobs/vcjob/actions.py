"""Suspends and resumes jobs of Volcano by their sizes: its own command for it would use up a retry each time."""

from collections.abc import Iterator, Mapping

from supervisor.cluster.annotations import REQUESTED
from supervisor.jobs.replicated.actions import Annotations, ReplicatedJobActions
from supervisor.jobs.vcjob.objects import SIZES, SUSPENSIONS, Sizes, VolcanoJob


class VolcanoJobActions(ReplicatedJobActions[VolcanoJob]):
    """See `supervisor.jobs.kind.JobActions`."""

    async def write_suspended(self, job: VolcanoJob, annotations: Mapping[str, str]) -> None:
        """The sizes are recorded first; the run ends in the same write in which its pods go."""
        requested = job.requested
        if requested is None:
            return
        recorded = {**annotations, SIZES: str(requested)}
        if not job.annotations.items() >= recorded.items():
            job = await self._context.client.merge(job, {}, metadata={"annotations": recorded})
            self._context.jobs.wrote(job)
        if not job.suspended:
            await self._patch(job, requested.none, {SUSPENSIONS: str(job.suspensions + 1)})

    async def write_size(self, job: VolcanoJob, pods: int, annotations: Annotations) -> None:
        if job.requested is not None:
            forgotten = {SIZES: None} if annotations[REQUESTED] is None else {}
            await self._patch(job, job.requested.resized(pods), {**annotations, **forgotten})

    async def _patch(self, job: VolcanoJob, sizes: Sizes, annotations: Annotations) -> None:
        written = await self._context.client.patch(job, [*sizes.operations, *_annotating(job, annotations)])
        self._context.jobs.wrote(written)


def _annotating(job: VolcanoJob, annotations: Annotations) -> Iterator[Mapping[str, object]]:
    """Operations that write these annotations; the job has others already."""
    for name, value in annotations.items():
        path = f"/metadata/annotations/{name.replace('/', '~1')}"
        if value is not None:
            yield {"op": "add", "path": path, "value": value}
        elif name in job.annotations:
            yield {"op": "remove", "path": path}
