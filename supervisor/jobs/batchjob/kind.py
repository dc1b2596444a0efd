"""Indexed Jobs of Kubernetes as a kind of job."""

from collections.abc import Mapping

import msgspec

from servicekit.kubernetes.client import Resource
from supervisor.cluster.annotations import MIN_WORKERS
from supervisor.domain.ids import Host
from supervisor.domain.job import Framework
from supervisor.jobs.batchjob.actions import BatchJobActions
from supervisor.jobs.batchjob.objects import read_batch_job
from supervisor.jobs.kind import KindContext, Right, Role
from supervisor.jobs.observation import annotation, count
from supervisor.jobs.replicated.kind import ReplicatedKind
from supervisor.jobs.replicated.objects import ReplicatedJob, ReplicatedSpec
from supervisor.jobs.replicated.observe import Bounds

_INDEX = "batch.kubernetes.io/job-completion-index"
_STATUS = Right(
    group="batch",
    resources=("jobs/status",),
    verbs=("patch",),
    reason="to clear the start of a suspended job, from which its deadline would be counted",
)


class BatchJobKind(ReplicatedKind[ReplicatedJob]):
    """See `supervisor.jobs.kind.JobKind`."""

    name = "batchjob"
    resource = Resource(group="batch", version="v1", kind="Job", plural="jobs", namespaced=True)
    framework = Framework.TORCHRUN  # The next run starts from the checkpoint.

    @property
    def pod_labels(self) -> frozenset[str]:
        return frozenset({_INDEX})

    @property
    def rights(self) -> tuple[Right, ...]:
        return (*super().rights, _STATUS)

    def decode(self, data: bytes | msgspec.Raw) -> ReplicatedJob:
        return read_batch_job(data)

    def role(self, labels: Mapping[str, str]) -> Role | None:
        return Role.WORKER if _INDEX in labels else None

    def host(self, job: str, _role: str, index: int) -> Host:
        """The controller gives a pod this host name, and a name with random letters at its end."""
        return Host(f"{job}-{index}")

    def bounds(self, job: ReplicatedJob, asked: ReplicatedSpec) -> Bounds:
        """The controller counts a pod that is deleted as failed, so none leaves while the job runs."""
        least = count(annotation([job.annotations, *asked.annotations], MIN_WORKERS))
        return Bounds(least=None if asked.has_fixed_size else least or None)

    def actions(self, context: KindContext[ReplicatedJob]) -> BatchJobActions:
        return BatchJobActions(context)
