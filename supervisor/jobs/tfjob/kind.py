"""Supports TFJobs of training-operator, which fails a job as soon as one of its pods is deleted."""

from servicekit.kubernetes.client import Resource
from supervisor.jobs import replicated

SHAPE = replicated.ReplicaShape(
    replicas="tfReplicaSpecs",
    roles=("Chief", "Master", "PS", "Worker"),
    scaled="Worker",
    role_label="training.kubeflow.org/replica-type",
    controller="kubeflow.org/training-operator",
)


TFJOB = replicated.roles_kind(
    "tfjob",
    Resource(group="kubeflow.org", version="v1", kind="TFJob", plural="tfjobs", namespaced=True),
    SHAPE,
)
