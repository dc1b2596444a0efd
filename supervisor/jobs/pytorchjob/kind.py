"""PyTorchJobs of training-operator as a kind of job."""

import re

from servicekit.kubernetes.client import Resource
from supervisor.domain.job import Capability
from supervisor.jobs.replicated.kind import SizeBounds, roles_kind
from supervisor.jobs.replicated.objects import ReplicaShape, ReplicatedJob, ReplicatedSpec

_BACKEND = "kubeai"
_BACKEND_VARIABLE = "PET_RDZV_BACKEND"
_BACKEND_OPTION = re.compile(rf"--rdzv[-_]backend[= ]{_BACKEND}(?!\S)")
_NEVER = "Never"


def _bounds(_job: ReplicatedJob, asked: ReplicatedSpec) -> SizeBounds:
    """Only members of the supervisor's rendezvous go on without a host, and only if no pod's loss is a failure."""
    elastic = asked.elastic
    # Without a minimum the operator starts torchrun with a fixed number of nodes.
    if elastic is None or elastic.min_replicas is None:
        return SizeBounds()
    # The store of a rendezvous of torchrun's own is on a worker.
    least, most = max(elastic.min_replicas, asked.others + 1), elastic.max_replicas
    follows_rounds = (
        elastic.rdzv_backend == _BACKEND
        or (_BACKEND_VARIABLE, _BACKEND) in asked.variables
        or any(_BACKEND_OPTION.search(command) for command in asked.commands)
    )
    if follows_rounds and _NEVER not in asked.restart_policies:
        can = frozenset({Capability.GROWS, Capability.REPLACES_HOSTS})
        return SizeBounds(least=least, most=most, capabilities=can)
    return SizeBounds(least=least, most=most)


PYTORCHJOB = roles_kind(
    "pytorchjob",
    Resource(group="kubeflow.org", version="v1", kind="PyTorchJob", plural="pytorchjobs", namespaced=True),
    ReplicaShape(
        replicas="pytorchReplicaSpecs",
        roles=("Master", "Worker"),
        scaled="Worker",
        role_label="training.kubeflow.org/replica-type",
        controller="kubeflow.org/training-operator",
    ),
    _bounds,
)
