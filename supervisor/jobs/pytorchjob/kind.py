"""Supports PyTorchJobs of training-operator."""

import re

from servicekit.kubernetes.client import Resource
from supervisor.domain.job import Capability
from supervisor.jobs import replicated

_BACKEND = "kubeai"
_BACKEND_VARIABLE = "PET_RDZV_BACKEND"
_BACKEND_OPTION = re.compile(rf"--rdzv[-_]backend[= ]{_BACKEND}(?!\S)")
_NEVER = "Never"


def _bounds(_job: replicated.ReplicatedJob, asked: replicated.ReplicatedSpec) -> replicated.SizeBounds:
    """Returns the bounds of a job.

    Only members of the supervisor's rendezvous continue without a host, and only if the operator does not count a lost
    pod as a failure.
    """
    elastic = asked.elastic
    # Without a minimum the operator starts torchrun with a fixed number of nodes.
    if elastic is None or elastic.min_replicas is None:
        return replicated.SizeBounds()
    # The store of a rendezvous of torchrun's own is on a worker.
    least, most = max(elastic.min_replicas, asked.others + 1), elastic.max_replicas
    follows_rounds = (
        elastic.rdzv_backend == _BACKEND
        or (_BACKEND_VARIABLE, _BACKEND) in asked.variables
        or any(_BACKEND_OPTION.search(command) for command in asked.commands)
    )
    if follows_rounds and _NEVER not in asked.restart_policies:
        can = frozenset({Capability.GROWS, Capability.REPLACES_HOSTS})
        return replicated.SizeBounds(least=least, most=most, capabilities=can)
    return replicated.SizeBounds(least=least, most=most)


PYTORCHJOB = replicated.roles_kind(
    "pytorchjob",
    Resource(group="kubeflow.org", version="v1", kind="PyTorchJob", plural="pytorchjobs", namespaced=True),
    replicated.ReplicaShape(
        replicas="pytorchReplicaSpecs",
        roles=("Master", "Worker"),
        scaled="Worker",
        role_label="training.kubeflow.org/replica-type",
        controller="kubeflow.org/training-operator",
    ),
    _bounds,
)
