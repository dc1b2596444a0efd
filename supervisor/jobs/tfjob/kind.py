"""TFJobs of training-operator as a kind of job."""

from servicekit.kubernetes.client import Resource
from supervisor.cluster.annotations import MIN_WORKERS
from supervisor.domain.job import Framework
from supervisor.jobs.observation import annotation, count
from supervisor.jobs.replicated.objects import ReplicatedJob, ReplicatedSpec, Shape
from supervisor.jobs.replicated.observe import Bounds
from supervisor.jobs.replicated.roles import RolesKind


class TfJobKind(RolesKind):
    """See `supervisor.jobs.kind.JobKind`."""

    name = "tfjob"
    resource = Resource(group="kubeflow.org", version="v1", kind="TFJob", plural="tfjobs", namespaced=True)
    framework = Framework.TORCHRUN  # The next run starts from the checkpoint.
    shape = Shape(
        replicas="tfReplicaSpecs",
        roles=("Chief", "Master", "PS", "Worker"),
        scaled="Worker",
        role_label="training.kubeflow.org/replica-type",
        controller="kubeflow.org/training-operator",
    )

    def bounds(self, job: ReplicatedJob, asked: ReplicatedSpec) -> Bounds:
        """The operator fails the job as soon as a pod is deleted, so nothing leaves while it runs."""
        workers = count(annotation([job.annotations, *asked.annotations], MIN_WORKERS))
        return Bounds(least=workers + asked.others if workers else None)
