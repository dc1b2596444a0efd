"""What the runtime reads of a pod."""

import msgspec

from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.objects import Metadata
from simulator.et_operator.names import JOB_LABEL, ROLE_LABEL, Role
from simulator.et_operator.objects import Meta, PodStatus

EXECS = Resource(group="kwok.x-k8s.io", version="v1alpha1", kind="Exec", plural="execs", namespaced=True)


class Variable(msgspec.Struct, frozen=True):
    """Of a container's environment; one that comes from elsewhere has no value here."""

    name: str
    value: str = ""


class Container(msgspec.Struct, frozen=True):
    """What is run."""

    name: str
    image: str = ""
    command: list[str] = msgspec.field(default_factory=list)
    args: list[str] = msgspec.field(default_factory=list)
    env: list[Variable] = msgspec.field(default_factory=list)


class PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    """Where it runs, as whom, and what."""

    containers: list[Container]
    node_name: str = ""
    service_account_name: str = "default"


class RunPod(msgspec.Struct, frozen=True):
    """A pod of a TrainingJob."""

    metadata: Meta
    spec: PodSpec
    status: PodStatus = PodStatus()

    @property
    def name(self) -> str:
        """Its name, which is that of a host."""
        return self.metadata.name

    @property
    def job(self) -> str:
        """The name of its job, which is in its namespace."""
        return self.metadata.labels.get(JOB_LABEL, "")

    @property
    def is_launcher(self) -> bool:
        """Whether its command is run."""
        return self.metadata.labels.get(ROLE_LABEL) == Role.LAUNCHER

    @property
    def runs(self) -> bool:
        """Whether its containers are to run."""
        return self.status.phase == "Running" and self.metadata.deletion_timestamp is None


class ConfigMap(msgspec.Struct, frozen=True):
    """Files."""

    metadata: Metadata
    data: dict[str, str] = msgspec.field(default_factory=dict)


class Exec(msgspec.Struct, frozen=True):
    """What kwok runs for a command in a pod."""

    metadata: Metadata
