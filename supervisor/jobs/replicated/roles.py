"""Kinds whose jobs have a run policy, and replicas by role."""

from collections.abc import Mapping

import msgspec

from supervisor.domain.ids import Host
from supervisor.jobs.kind import KindContext, Role
from supervisor.jobs.replicated.kind import ReplicatedKind
from supervisor.jobs.replicated.merging import MergingJobActions
from supervisor.jobs.replicated.objects import ReplicatedJob, ReplicatedSpec, Shape, read_replicated_job


class RolesActions(MergingJobActions[ReplicatedJob]):
    """See `supervisor.jobs.kind.JobActions`."""

    def __init__(self, context: KindContext[ReplicatedJob], shape: Shape) -> None:
        super().__init__(context)
        self._shape = shape

    def suspension(self, *, suspend: bool) -> Mapping[str, object]:
        return {"runPolicy": {"suspend": suspend}}

    def size(self, asked: ReplicatedSpec, pods: int) -> Mapping[str, object]:
        """The number of the other roles stays."""
        scaled = {asked.scaled: {"replicas": pods - asked.others}}
        return {self._shape.replicas: scaled} if asked.scaled in asked.sizes else {}


class RolesKind(ReplicatedKind[ReplicatedJob]):
    """See `supervisor.jobs.kind.JobKind`; `shape` says how the kind writes its jobs."""

    shape: Shape

    @property
    def pod_labels(self) -> frozenset[str]:
        return frozenset({self.shape.role_label})

    def decode(self, data: bytes | msgspec.Raw) -> ReplicatedJob:
        return read_replicated_job(data, self.shape)

    def role(self, labels: Mapping[str, str]) -> Role | None:
        """All roles are workers: the run needs each of them."""
        roles = {role.lower() for role in self.shape.roles}
        return Role.WORKER if labels.get(self.shape.role_label) in roles else None

    def host(self, job: str, role: str, index: int) -> Host:
        return Host(f"{job}-{role.lower()}-{index}")

    def actions(self, context: KindContext[ReplicatedJob]) -> RolesActions:
        return RolesActions(context, self.shape)
