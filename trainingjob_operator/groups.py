"""Makes PodGroups, by which a gang scheduler starts the workers of a job together or not at all."""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import msgspec

from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.errors import ConflictError
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.server import ApiServer
from trainingjob_operator import manifests
from trainingjob_operator.api import ROLE_LABEL, WORKER, Named, TrainingJob


class Gang(StrEnum):
    """The gang scheduler of a cluster."""

    NONE = "none"
    VOLCANO = "volcano"
    COSCHEDULING = "coscheduling"
    KOORDINATOR = "koordinator"


@dataclass(frozen=True, slots=True)
class _Scheme:
    """How a scheduler knows the members of a group.

    Attributes:
        mark: The name of the label, or of the annotation, with the name of the group.
        is_label: Whether it is a label.
    """

    group: str
    version: str
    mark: str
    is_label: bool


_SCHEMES = {
    Gang.VOLCANO: _Scheme("scheduling.volcano.sh", "v1beta1", "scheduling.k8s.io/group-name", is_label=False),
    Gang.COSCHEDULING: _Scheme("scheduling.x-k8s.io", "v1alpha1", "scheduling.x-k8s.io/pod-group", is_label=True),
    Gang.KOORDINATOR: _Scheme("scheduling.sigs.k8s.io", "v1alpha1", "pod-group.scheduling.sigs.k8s.io", is_label=True),
}


class GangScheduler:
    """Makes the PodGroups of one scheduler."""

    def __init__(self, server: ApiServer, kind: Gang) -> None:
        self._scheme = _SCHEMES[kind]
        resource = Resource(
            group=self._scheme.group,
            version=self._scheme.version,
            kind="PodGroup",
            plural="podgroups",
            namespaced=True,
        )
        self._groups: ResourceClient[Named] = ResourceClient(server, resource, partial(msgspec.json.decode, type=Named))

    async def write(self, job: TrainingJob, members: int) -> None:
        """Creates the PodGroup of a job, or changes how many pods it has to have at least.

        Raises:
            ApiError: It could not be written.
        """
        spec = {"minMember": members}
        try:
            await self._groups.create(job.metadata.key, {"spec": spec}, **manifests.owned(job))
        except ConflictError:
            there = await self._groups.get(ObjectKey(job.metadata.namespace, job.metadata.name))
            await self._groups.merge(there, {"spec": spec})

    def placed(self, job: TrainingJob, metadata: manifests.Manifest) -> manifests.Manifest:
        """Returns the metadata of a pod as a member of the group. The launcher is created when all members run."""
        if metadata["labels"].get(ROLE_LABEL) != WORKER:
            return metadata
        part = "labels" if self._scheme.is_label else "annotations"
        return {**metadata, part: {**metadata[part], self._scheme.mark: job.metadata.name}}
