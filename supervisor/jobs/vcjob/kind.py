"""Jobs of Volcano as a kind of job: their sizes suspend them, as Volcano's own command would use up a retry."""

from collections.abc import Mapping
from dataclasses import dataclass

from servicekit.kubernetes.client import Resource
from supervisor.cluster.annotations import MIN_WORKERS, REQUESTED
from supervisor.domain.ids import Host
from supervisor.domain.job import Framework
from supervisor.jobs.annotated import asked_count
from supervisor.jobs.kind import JobKind, KindContext, PodRole, owned_by
from supervisor.jobs.replicated.actions import AnnotationChanges, ReplicatedJobActions
from supervisor.jobs.replicated.kind import ReplicatedRules, SizeBounds
from supervisor.jobs.replicated.objects import ReplicatedSpec, full_right
from supervisor.jobs.vcjob.objects import SIZES, SUSPENSIONS, VolcanoJob, VolcanoSizes, read_volcano_job

_JOBS = Resource(group="batch.volcano.sh", version="v1alpha1", kind="Job", plural="jobs", namespaced=True)
_TASK = "volcano.sh/task-spec"
_ANNOTATIONS = frozenset({SIZES, SUSPENSIONS})


@dataclass(frozen=True, slots=True)
class VolcanoSizeWriter:
    """Implements `SpecWriter` by the sizes of a job."""

    context: KindContext[VolcanoJob]

    async def suspend(self, job: VolcanoJob, annotations: Mapping[str, str]) -> None:
        """Records the sizes first; the run ends in the same write in which its pods go."""
        requested = job.requested
        if requested is None:
            return
        recorded = {**annotations, SIZES: str(requested)}
        if not job.annotations.items() >= recorded.items():
            job = await self.context.client.merge(job, {}, metadata={"annotations": recorded})
            self.context.jobs.wrote(job)
        if not job.suspended:
            await self._patch(job, requested.none, {SUSPENSIONS: str(job.suspensions + 1)})

    async def resize(self, job: VolcanoJob, pods: int, annotations: AnnotationChanges) -> None:
        if job.requested is not None:
            forgotten = {SIZES: None} if annotations[REQUESTED] is None else {}
            await self._patch(job, job.requested.resized(pods), {**annotations, **forgotten})

    async def _patch(self, job: VolcanoJob, sizes: VolcanoSizes, annotations: AnnotationChanges) -> None:
        """Writes sizes and annotations at once; the job has other annotations already."""
        operations = list(sizes.operations)
        for name, value in annotations.items():
            path = f"/metadata/annotations/{name.replace('/', '~1')}"
            if value is not None:
                operations.append({"op": "add", "path": path, "value": value})
            elif name in job.annotations:
                operations.append({"op": "remove", "path": path})
        self.context.jobs.wrote(await self.context.client.patch(job, operations))


def _bounds(job: VolcanoJob, asked: ReplicatedSpec) -> SizeBounds:
    """An annotation counts more than the gang's minimum, which Volcano sets to all pods where none is given."""
    workers = asked_count([job.annotations, *asked.annotations], MIN_WORKERS)
    if workers:
        return SizeBounds(least=workers + asked.others)
    gang = 0 if job.requested is None else job.requested.min_available
    return SizeBounds(least=max(gang, asked.others + 1))


def _role(labels: Mapping[str, str]) -> PodRole | None:
    """The pods of all tasks are workers: the run needs each of them."""
    return PodRole.WORKER if labels.get(_TASK) else None


def _host(job: str, role: str, index: int) -> Host:
    return Host(f"{job}-{role}-{index}")


def _actions(context: KindContext[VolcanoJob]) -> ReplicatedJobActions[VolcanoJob]:
    return ReplicatedJobActions(context, VolcanoSizeWriter(context))


VCJOB = JobKind(
    name="vcjob",
    resource=_JOBS,
    rights=(full_right(_JOBS),),
    pod_labels=frozenset({_TASK}),
    annotations=_ANNOTATIONS,
    decode=read_volcano_job,
    role=_role,
    reference=owned_by("vcjob", _JOBS),
    # The next run starts from the checkpoint.
    observe=ReplicatedRules(framework=Framework.TORCHRUN, bounds=_bounds, host=_host, own=_ANNOTATIONS).observe,
    actions=_actions,
)
