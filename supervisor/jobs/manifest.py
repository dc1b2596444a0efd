"""Decodes the parts of a job's object that all kinds write in the same way.

Whatever the API server accepts must not stop the rest: a spec or status that does not decode is None.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import TypeVar

import msgspec

from servicekit.bounds import counted
from servicekit.kubernetes.objects import Metadata, Owner
from supervisor.cluster.annotations import LAST_CHECKPOINT, ours
from supervisor.cluster.gangs import GangDemand, GangMember, gang_of
from supervisor.cluster.podspec import Body, PodSpec, SchedulingGroup
from supervisor.domain.capacity import Demand

T = TypeVar("T")

HUB_LABEL = "karmada.io/managed"
"""`true` on every object that a hub of Karmada has created in a member, where the hub owns its spec."""


def gangs_of(templates: Mapping[str, "PodTemplate"]) -> Mapping[str, GangMember]:
    """Returns the gang of each role whose template names one."""
    return {role: gang for role, template in templates.items() if (gang := template.gang) is not None}


class JobMetadata(Body, frozen=True):
    """The metadata of a job as the API server sends them."""

    name: str
    uid: str
    resource_version: str
    namespace: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    owner_references: tuple[Owner, ...] | None = None

    @property
    def from_hub(self) -> bool:
        """Whether a hub has created the job."""
        return (self.labels or {}).get(HUB_LABEL) == "true"

    @property
    def moved_with(self) -> str | None:
        """The step with which a hub has moved the job here, as text; None if it has not, or is done with that."""
        return (self.labels or {}).get(LAST_CHECKPOINT) if self.from_hub else None

    @property
    def identity(self) -> Metadata:
        """The part of the metadata that is kept."""
        return Metadata(
            name=self.name,
            uid=self.uid,
            resource_version=self.resource_version,
            namespace=self.namespace,
            creation_timestamp=self.creation_timestamp,
        )


class EnvironmentVariable(Body, frozen=True):
    """An environment variable of a container; the value is empty if it comes from another object."""

    name: str
    value: str = ""


class TemplateContainer(Body, frozen=True):
    """A container of a template."""

    name: str = ""
    command: tuple[str, ...] | None = ()
    args: tuple[str, ...] | None = ()
    env: tuple[EnvironmentVariable, ...] | None = ()

    @property
    def words(self) -> tuple[str, ...]:
        """The command line."""
        return (*(self.command or ()), *(self.args or ()))


class _TemplateContainers(Body, frozen=True):
    containers: tuple[TemplateContainer, ...]


class _TemplateMetadata(Body, frozen=True):
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class _TemplateGroup(Body, frozen=True):
    scheduling_group: SchedulingGroup = SchedulingGroup()


class PodTemplate(Body, frozen=True):
    """The template of the pods of one role. Its methods decode the spec; they may raise MsgspecError or ValueError."""

    spec: msgspec.Raw
    metadata: _TemplateMetadata = _TemplateMetadata()

    @property
    def annotations(self) -> Mapping[str, str]:
        """Our own annotations of the pods."""
        return ours(self.metadata.annotations)

    @property
    def gang(self) -> GangMember | None:
        """The gang of the pods; None if they name none."""
        group = (decoded(self.spec, _TemplateGroup) or _TemplateGroup()).scheduling_group
        return gang_of(self.metadata.labels, self.metadata.annotations, group.pod_group_name)

    def containers(self) -> tuple[TemplateContainer, ...]:
        """Reads the containers."""
        return msgspec.json.decode(self.spec, type=_TemplateContainers).containers

    def demand(self) -> Demand:
        """Reads the resource requests of a pod. Raises ValueError for an invalid quantity."""
        return msgspec.json.decode(self.spec, type=PodSpec).demand()


class RoleReplicas(Body, frozen=True):
    """The pods of one role of a job, as operators of Kubeflow write them."""

    template: PodTemplate
    replicas: int | None = None


class _SchedulingPolicy(Body, frozen=True):
    min_available: int | None = None


class RunPolicy(Body, frozen=True):
    """The part of a spec with which operators of Kubeflow suspend a job, and make its PodGroup."""

    suspend: bool | None = None
    managed_by: str | None = None
    scheduling_policy: _SchedulingPolicy | None = None

    @property
    def gang(self) -> GangDemand | None:
        """The fewest pods that the policy demands of a gang scheduler; None if it demands none."""
        least = 0 if self.scheduling_policy is None else counted(self.scheduling_policy.min_available)
        return GangDemand(least, "runPolicy.schedulingPolicy.minAvailable") if least else None


class JobConditionBody(Body, frozen=True):
    """A condition of a job."""

    type: str
    status: str
    last_transition_time: datetime | None = None


class ConditionsStatus(Body, frozen=True):
    """A status with conditions."""

    conditions: tuple[JobConditionBody, ...] | None = None

    @property
    def true(self) -> list[JobConditionBody]:
        """The conditions that are true."""
        return [each for each in self.conditions or () if each.status == "True"]


class StartedStatus(ConditionsStatus, frozen=True):
    """A status in which the controller also writes when it started the job."""

    start_time: datetime | None = None


class JobBody(Body, frozen=True):
    """A job whose spec and status are not decoded yet, because either may be unreadable."""

    metadata: JobMetadata
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")


def decoded(data: msgspec.Raw, kind: type[T]) -> T | None:
    """Decodes a part of a job; None if it has another form."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError:
        return None
