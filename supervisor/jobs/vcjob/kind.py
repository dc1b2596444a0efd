"""The jobs of Volcano as a kind of job."""

from collections.abc import Mapping

import msgspec

from servicekit.kubernetes.client import Resource
from supervisor.cluster.annotations import MIN_WORKERS
from supervisor.domain.ids import Host
from supervisor.domain.job import Framework
from supervisor.jobs.kind import KindContext, Role
from supervisor.jobs.observation import annotation, count
from supervisor.jobs.replicated.kind import ReplicatedKind
from supervisor.jobs.replicated.objects import ReplicatedSpec
from supervisor.jobs.replicated.observe import Bounds
from supervisor.jobs.vcjob.actions import VolcanoJobActions
from supervisor.jobs.vcjob.objects import SIZES, SUSPENSIONS, VolcanoJob, read_volcano_job

_TASK = "volcano.sh/task-spec"


class VcJobKind(ReplicatedKind[VolcanoJob]):
    """See `supervisor.jobs.kind.JobKind`."""

    name = "vcjob"
    resource = Resource(group="batch.volcano.sh", version="v1alpha1", kind="Job", plural="jobs", namespaced=True)
    framework = Framework.TORCHRUN  # The next run starts from the checkpoint.
    annotations = frozenset({SIZES, SUSPENSIONS})

    @property
    def pod_labels(self) -> frozenset[str]:
        return frozenset({_TASK})

    def bounds(self, job: VolcanoJob, asked: ReplicatedSpec) -> Bounds:
        """An annotation counts more than the gang's minimum, which Volcano sets to all pods where none is given."""
        workers = count(annotation([job.annotations, *asked.annotations], MIN_WORKERS))
        if workers:
            return Bounds(least=workers + asked.others)
        gang = 0 if job.requested is None else job.requested.min_available
        return Bounds(least=max(gang, asked.others + 1))

    def decode(self, data: bytes | msgspec.Raw) -> VolcanoJob:
        return read_volcano_job(data)

    def role(self, labels: Mapping[str, str]) -> Role | None:
        """The pods of all tasks are workers: the run needs each of them."""
        return Role.WORKER if labels.get(_TASK) else None

    def host(self, job: str, role: str, index: int) -> Host:
        return Host(f"{job}-{role}-{index}")

    def actions(self, context: KindContext[VolcanoJob]) -> VolcanoJobActions:
        return VolcanoJobActions(context)
