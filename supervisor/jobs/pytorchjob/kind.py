"""PyTorchJobs of training-operator as a kind of job."""

import re

from servicekit.kubernetes.client import Resource
from supervisor.domain.job import Capability, Framework
from supervisor.jobs.replicated.objects import ReplicatedJob, ReplicatedSpec, Shape
from supervisor.jobs.replicated.observe import Bounds
from supervisor.jobs.replicated.roles import RolesKind

_BACKEND = "kubeai"
_BACKEND_VARIABLE = "PET_RDZV_BACKEND"
_BACKEND_OPTION = re.compile(rf"--rdzv[-_]backend[= ]{_BACKEND}(?!\S)")
_NEVER = "Never"


class PyTorchJobKind(RolesKind):
    """See `supervisor.jobs.kind.JobKind`."""

    name = "pytorchjob"
    resource = Resource(group="kubeflow.org", version="v1", kind="PyTorchJob", plural="pytorchjobs", namespaced=True)
    framework = Framework.TORCHRUN
    shape = Shape(
        replicas="pytorchReplicaSpecs",
        roles=("Master", "Worker"),
        scaled="Worker",
        role_label="training.kubeflow.org/replica-type",
        controller="kubeflow.org/training-operator",
    )

    def bounds(self, _job: ReplicatedJob, asked: ReplicatedSpec) -> Bounds:
        """Only members of the supervisor's rendezvous go on without a host, and only if no pod's loss is a failure."""
        elastic = asked.elastic
        # Without a minimum the operator starts torchrun with a fixed number of nodes.
        if elastic is None or elastic.min_replicas is None:
            return Bounds()
        # The store of a rendezvous of torchrun's own is on a worker.
        least, most = max(elastic.min_replicas, asked.others + 1), elastic.max_replicas
        if _follows_rounds(asked) and _NEVER not in asked.restart_policies:
            can = frozenset({Capability.GROWS, Capability.REPLACES_HOSTS})
            return Bounds(least=least, most=most, capabilities=can)
        return Bounds(least=least, most=most)


def _follows_rounds(asked: ReplicatedSpec) -> bool:
    """Whether the elastic agents use the rendezvous backend of the supervisor."""
    if asked.elastic is not None and asked.elastic.rdzv_backend == _BACKEND:
        return True
    named = any(_BACKEND_OPTION.search(command) for command in asked.commands)
    return named or (_BACKEND_VARIABLE, _BACKEND) in asked.variables
