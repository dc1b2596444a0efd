"""TrainJobs of Kubeflow Trainer as a kind of job."""

import msgspec

from servicekit.kubernetes.client import Resource
from supervisor.jobs.jobset.kind import JobSetBasedKind, JobSetKind
from supervisor.jobs.kind import Dependent
from supervisor.jobs.trainjob.objects import TrainJob, read_trainjob


class TrainJobKind(JobSetBasedKind[TrainJob]):
    """See `supervisor.jobs.kind.JobKind`."""

    name = "trainjob"
    resource = Resource(
        group="trainer.kubeflow.org", version="v1alpha1", kind="TrainJob", plural="trainjobs", namespaced=True
    )
    dependent = Dependent(kind=JobSetKind.name, joined=TrainJob.joined)

    def decode(self, data: bytes | msgspec.Raw) -> TrainJob:
        return read_trainjob(data)
