"""The parts of a pod that the runtime reads."""

import msgspec

from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.objects import Metadata
from simulator.et_operator.names import JOB_LABEL, ROLE_LABEL, TrainingJobRole
from simulator.et_operator.objects import Meta, PodStatus

EXECS = Resource(group="kwok.x-k8s.io", version="v1alpha1", kind="Exec", plural="execs", namespaced=True)


class ManifestVariable(msgspec.Struct, frozen=True):
    """An environment variable of a container. One from another source has no value here."""

    name: str
    value: str = ""


class ManifestContainer(msgspec.Struct, frozen=True):
    name: str
    image: str = ""
    command: list[str] = msgspec.field(default_factory=list)
    args: list[str] = msgspec.field(default_factory=list)
    env: list[ManifestVariable] = msgspec.field(default_factory=list)


class ManifestPodSpec(msgspec.Struct, frozen=True, rename="camel"):
    containers: list[ManifestContainer]
    node_name: str = ""
    service_account_name: str = "default"


class RunPod(msgspec.Struct, frozen=True):
    metadata: Meta
    spec: ManifestPodSpec
    status: PodStatus = PodStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def job(self) -> str:
        return self.metadata.labels.get(JOB_LABEL, "")

    @property
    def is_launcher(self) -> bool:
        return self.metadata.labels.get(ROLE_LABEL) == TrainingJobRole.LAUNCHER

    @property
    def runs(self) -> bool:
        """Whether its containers must run."""
        return self.status.phase == "Running" and self.metadata.deletion_timestamp is None


class ManifestConfigMap(msgspec.Struct, frozen=True):
    metadata: Metadata
    data: dict[str, str] = msgspec.field(default_factory=dict)


class Exec(msgspec.Struct, frozen=True):
    """kwok's resource for commands in a pod."""

    metadata: Metadata
