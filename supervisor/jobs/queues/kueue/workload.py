"""Workloads of Kueue, and the admission of the jobs that they were made for."""

import re
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from servicekit.kubernetes.client import Resource
from servicekit.kubernetes.objects import Metadata, Owner
from supervisor.cluster.annotations import OURS, PRIORITY_BOOST, SUSPENDED_BY
from supervisor.cluster.objects import Condition
from supervisor.domain.ids import JobName
from supervisor.jobs.kind import Admission
from supervisor.jobs.registry import owning_job

WORKLOADS = Resource(group="kueue.x-k8s.io", version="v1beta1", kind="Workload", plural="workloads", namespaced=True)


KUEUE_BOOST = "kueue.x-k8s.io/priority-boost"
"""What Kueue adds to the priority of a Workload: an integer, which any controller may write."""

_BOOST = re.compile(r"[1-9][0-9]{0,8}")
"""The boosts that the supervisor writes."""


class _Type(StrEnum):
    """The conditions that are asked for here."""

    QUOTA_RESERVED = "QuotaReserved"
    ADMITTED = "Admitted"
    EVICTED = "Evicted"
    FINISHED = "Finished"


class _Annotations(msgspec.Struct, frozen=True):
    """Only the annotations that are needed, as others may be long."""

    suspended_by: str = msgspec.field(default="", name=SUSPENDED_BY)
    boost: str = msgspec.field(default="", name=KUEUE_BOOST)
    our_boost: str = msgspec.field(default="", name=PRIORITY_BOOST)


class _Metadata(Metadata, frozen=True, rename="camel"):
    annotations: _Annotations = _Annotations()
    owner_references: tuple[Owner, ...] = ()


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    active: bool = True
    queue_name: str = ""


class _Status(msgspec.Struct, frozen=True):
    conditions: tuple[Condition, ...] = ()


class Workload(msgspec.Struct, frozen=True):
    """One Workload, which Kueue makes for a job that it manages."""

    metadata: _Metadata
    spec: _Spec = _Spec()
    status: _Status = _Status()
    unread: str = ""
    """Why only its metadata could be read; empty if all of it could."""

    @property
    def owner(self) -> Owner | None:
        """The job that it was made for."""
        return next((owner for owner in self.metadata.owner_references if owner.controller), None)

    @property
    def job(self) -> JobName | None:
        """The name of that job, if it is of a kind that is supervised."""
        return owning_job(self.metadata.namespace, self.owner)

    @property
    def active(self) -> bool:
        """Whether it takes part in its queue."""
        return self.spec.active

    @property
    def marked(self) -> bool:
        """Whether the supervisor has taken it out of its queue, and not put it back."""
        return self.metadata.annotations.suspended_by == OURS

    @property
    def reserves_quota(self) -> bool:
        """Whether it has a part of its queue's quota."""
        return self._is(_Type.QUOTA_RESERVED)

    @property
    def admitted(self) -> bool:
        """Whether its job may run."""
        return self._is(_Type.ADMITTED) and not self._is(_Type.EVICTED)

    @property
    def finished(self) -> bool:
        """Whether its job has ended."""
        return self._is(_Type.FINISHED)

    @property
    def boost(self) -> int:
        """The boost that the supervisor has written, 0 if there is none."""
        annotations = self.metadata.annotations
        is_ours = annotations.boost == annotations.our_boost
        return int(annotations.boost) if is_ours and _BOOST.fullmatch(annotations.boost) else 0

    @property
    def boost_of_another(self) -> str:
        """The boost that somebody else has written, empty if there is none."""
        return "" if self.boost else self.metadata.annotations.boost

    @property
    def boost_marked(self) -> bool:
        """Whether the supervisor has written a boost, which somebody may have changed or removed."""
        return bool(self.metadata.annotations.our_boost)

    @property
    def admission(self) -> Admission:
        """The admission of its job; it contains no number, so that it changes only when something happens."""
        is_ours = self.marked and not self.active
        # Nothing is known about the admission of an unread one, and nobody stops a job because of that.
        if self.unread or is_ours or self.admitted or self.finished:
            return Admission()
        if self.reserves_quota and self._is(_Type.EVICTED):
            return Admission(f"Kueue evicts the job: {self._conditions[_Type.EVICTED].reason}.")
        if not self.active:
            return Admission("The job's Workload was deactivated; somebody has to activate it.")
        return Admission(f"The job waits in the queue {self.spec.queue_name} of Kueue.")

    @property
    def _conditions(self) -> Mapping[str, Condition]:
        return {each.type: each for each in self.status.conditions}

    def _is(self, kind: _Type) -> bool:
        condition = self._conditions.get(kind)
        return condition is not None and condition.status == "True"


class _WorkloadOutline(msgspec.Struct, frozen=True):
    metadata: _Metadata


def read_workload(data: bytes | msgspec.Raw) -> Workload:
    """Decodes a Workload from the API server's JSON, or the metadata of one that this version does not know.

    Raises:
        msgspec.MsgspecError: It has no metadata.
    """
    try:
        return msgspec.json.decode(data, type=Workload)
    except msgspec.MsgspecError as error:
        outline = msgspec.json.decode(data, type=_WorkloadOutline)
        return Workload(outline.metadata, unread=str(error))
