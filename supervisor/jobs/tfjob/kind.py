"""TFJobs of training-operator as a kind of job."""

from servicekit.kubernetes.client import Resource
from supervisor.cluster.annotations import MIN_WORKERS
from supervisor.domain.job import Framework
from supervisor.jobs.annotated import asked_count
from supervisor.jobs.replicated.kind import SizeBounds, roles_kind
from supervisor.jobs.replicated.objects import ReplicaShape, ReplicatedJob, ReplicatedSpec

SHAPE = ReplicaShape(
    replicas="tfReplicaSpecs",
    roles=("Chief", "Master", "PS", "Worker"),
    scaled="Worker",
    role_label="training.kubeflow.org/replica-type",
    controller="kubeflow.org/training-operator",
)


def _bounds(job: ReplicatedJob, asked: ReplicatedSpec) -> SizeBounds:
    """The operator fails the job as soon as a pod is deleted, so nothing leaves while it runs."""
    workers = asked_count([job.annotations, *asked.annotations], MIN_WORKERS)
    return SizeBounds(least=workers + asked.others if workers else None)


TFJOB = roles_kind(
    "tfjob",
    Resource(group="kubeflow.org", version="v1", kind="TFJob", plural="tfjobs", namespaced=True),
    Framework.TORCHRUN,  # The next run starts from the checkpoint.
    SHAPE,
    _bounds,
)
