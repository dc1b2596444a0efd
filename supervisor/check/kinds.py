"""What the manifests of each kind look like."""

from collections.abc import Mapping
from dataclasses import dataclass

from servicekit.kubernetes.client import Resource
from supervisor.check.job import Kind
from supervisor.jobs.registry import KINDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The manifest of one kind.

    Attributes:
        resource: The API resource.
        replica_specs: The field of the spec with one template for each role; empty if there is none.
        leaders: The roles without which the job cannot go on, in lower case.
        budget: The path of the number of retries in the spec.
        short_names: Further names that kubectl takes for it.
    """

    resource: Resource
    replica_specs: str = ""
    leaders: frozenset[str] = frozenset()
    budget: tuple[str, ...] = ("runPolicy", "backoffLimit")
    short_names: tuple[str, ...] = ()


def _kubeflow(version: str, kind: str) -> Resource:
    return Resource(group="kubeflow.org", version=version, kind=kind, plural=f"{kind.lower()}s", namespaced=True)


SHAPES: Mapping[Kind, Shape] = {
    Kind.TRAINING_JOB: Shape(
        resource=Resource(
            group="kai.alibabacloud.com", version="v1alpha1", kind="TrainingJob", plural="trainingjobs", namespaced=True
        ),
        replica_specs="etReplicaSpecs",
        leaders=frozenset({"launcher"}),
        budget=("backoffLimit",),
    ),
    Kind.MPI_JOB: Shape(
        resource=_kubeflow("v2beta1", "MPIJob"), replica_specs="mpiReplicaSpecs", leaders=frozenset({"launcher"})
    ),
    Kind.PYTORCH_JOB: Shape(
        resource=_kubeflow("v1", "PyTorchJob"), replica_specs="pytorchReplicaSpecs", leaders=frozenset({"master"})
    ),
    Kind.TF_JOB: Shape(
        resource=_kubeflow("v1", "TFJob"), replica_specs="tfReplicaSpecs", leaders=frozenset({"chief", "master"})
    ),
    Kind.VOLCANO_JOB: Shape(
        resource=Resource(group="batch.volcano.sh", version="v1alpha1", kind="Job", plural="jobs", namespaced=True),
        budget=("maxRetry",),
        short_names=("vcjob", "vj"),
    ),
    Kind.JOB: Shape(
        resource=Resource(group="batch", version="v1", kind="Job", plural="jobs", namespaced=True),
        budget=("backoffLimit",),
    ),
    Kind.JOB_SET: Shape(
        resource=Resource(
            group="jobset.x-k8s.io", version="v1alpha2", kind="JobSet", plural="jobsets", namespaced=True
        ),
        budget=("failurePolicy", "maxRestarts"),
    ),
    Kind.TRAIN_JOB: Shape(
        resource=Resource(
            group="trainer.kubeflow.org", version="v1alpha1", kind="TrainJob", plural="trainjobs", namespaced=True
        ),
        budget=("failurePolicy", "maxRestarts"),
    ),
}


def kind_of(group: str, name: str) -> Kind | None:
    """The kind with that API group and name; None if it is none that can be checked."""
    named = ((kind, shape.resource) for kind, shape in SHAPES.items())
    return next((kind for kind, resource in named if (resource.group, resource.kind) == (group, name)), None)


SUPERVISED: Mapping[str, Kind] = {
    kind.name: found for kind in KINDS if (found := kind_of(kind.resource.group, kind.resource.kind)) is not None
}
"""The kinds that the supervisor looks after on a cluster, by their names in the names of jobs."""
