"""Workloads of Kueue: each holds the admission of the job that it was made for."""

import re
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Any

import msgspec
import structlog

from servicekit.bounds import one_line
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.objects import Metadata, Owner
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.annotations import OURS, PRIORITY_BOOST, SUSPENDED_BY
from supervisor.cluster.objects import ObjectCondition
from supervisor.domain.ids import JobName
from supervisor.jobs.kind import Admission, JobState, Right
from supervisor.jobs.registry import owning_job

WORKLOADS = Resource(group="kueue.x-k8s.io", version="v1beta1", kind="Workload", plural="workloads", namespaced=True)

RIGHTS = (
    Right(
        group=WORKLOADS.group,
        resources=(WORKLOADS.plural,),
        verbs=("get", "list", "watch", "patch"),
        reason="to see which jobs Kueue admits and evicts, to suspend and resume them by `spec.active`, and to write "
        "their priority boost if a setting asks for it",
    ),
)

KUEUE_BOOST = "kueue.x-k8s.io/priority-boost"
"""Kueue adds this integer to the priority of a Workload. Any controller may write it."""

_OUR_BOOST = re.compile(r"[1-9][0-9]{0,8}")
"""The form of the boosts that the supervisor writes."""

_log = structlog.get_logger()


class WorkloadCondition(StrEnum):
    """The conditions of a Workload that the supervisor reads."""

    QUOTA_RESERVED = "QuotaReserved"
    ADMITTED = "Admitted"
    EVICTED = "Evicted"
    FINISHED = "Finished"


class _WorkloadAnnotations(msgspec.Struct, frozen=True):
    """The annotations that the supervisor reads; others may be long."""

    suspended_by: str = msgspec.field(default="", name=SUSPENDED_BY)
    boost: str = msgspec.field(default="", name=KUEUE_BOOST)
    our_boost: str = msgspec.field(default="", name=PRIORITY_BOOST)


class _WorkloadMetadata(Metadata, frozen=True, rename="camel"):
    annotations: _WorkloadAnnotations = _WorkloadAnnotations()
    owner_references: tuple[Owner, ...] = ()


class _WorkloadSpec(msgspec.Struct, frozen=True, rename="camel"):
    active: bool = True
    queue_name: str = ""


class _WorkloadStatus(msgspec.Struct, frozen=True):
    conditions: tuple[ObjectCondition, ...] = ()


class _WorkloadOutline(msgspec.Struct, frozen=True):
    metadata: _WorkloadMetadata


class Workload(msgspec.Struct, frozen=True):
    """One Workload, which Kueue makes for a job that it manages.

    Attributes:
        unread: Why only its metadata could be read; empty if all of it could.
    """

    metadata: _WorkloadMetadata
    spec: _WorkloadSpec = _WorkloadSpec()
    status: _WorkloadStatus = _WorkloadStatus()
    unread: str = ""

    @property
    def job(self) -> tuple[JobName, str] | None:
        """The name and the uid of the job that it was made for; None if that is of no supervised kind."""
        owner = next((owner for owner in self.metadata.owner_references if owner.controller), None)
        name = owning_job(self.metadata.namespace, owner)
        return None if owner is None or name is None else (name, owner.uid)

    @property
    def marked(self) -> bool:
        """Whether the supervisor has taken it out of its queue, and not put it back."""
        return self.metadata.annotations.suspended_by == OURS

    @property
    def may_run(self) -> bool:
        """Whether its job may run, and has not ended."""
        true = self._conditions()
        admitted = WorkloadCondition.ADMITTED in true and WorkloadCondition.EVICTED not in true
        return admitted and self.spec.active and WorkloadCondition.FINISHED not in true

    @property
    def reserves_quota(self) -> bool:
        """Whether it has a part of its queue's quota."""
        return WorkloadCondition.QUOTA_RESERVED in self._conditions()

    @property
    def boost(self) -> int:
        """The boost that the supervisor has written, 0 if there is none."""
        annotations = self.metadata.annotations
        is_ours = annotations.boost == annotations.our_boost and _OUR_BOOST.fullmatch(annotations.boost)
        return int(annotations.boost) if is_ours else 0

    @property
    def admission(self) -> Admission:
        """The admission of its job; it contains no number, so that it changes only when something happens."""
        true = self._conditions()
        is_ours = self.marked and not self.spec.active
        is_evicted = WorkloadCondition.EVICTED in true
        is_admitted = WorkloadCondition.ADMITTED in true and not is_evicted
        # Nothing is known about the admission of an unread one, and nobody stops a job because of that.
        if self.unread or is_ours or is_admitted or WorkloadCondition.FINISHED in true:
            return Admission()
        if WorkloadCondition.QUOTA_RESERVED in true and is_evicted:
            return Admission(f"Kueue evicts the job: {true[WorkloadCondition.EVICTED]}.")
        if not self.spec.active:
            return Admission("The job's Workload was deactivated; somebody has to activate it.")
        return Admission(f"The job waits in the queue {self.spec.queue_name} of Kueue.")

    def _conditions(self) -> dict[str, str]:
        """The reasons of the conditions that are true, by type; of several of one type the last one counts."""
        last = {each.type: each for each in self.status.conditions}
        return {each.type: each.reason for each in last.values() if each.status == "True"}


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


class Workloads:
    """Caches and changes the Workloads of a cluster; there are none while Kueue is not installed.

    Args:
        server: The API server.
        clock: For the reflector.
        on_change: Called with the names of jobs whose Workload has changed.
        bulkhead: Keeps what nobody foresaw with its Workload.
    """

    def __init__(
        self,
        server: ApiServer,
        clock: Clock,
        on_change: Callable[[Collection[JobName]], None],
        bulkhead: Bulkhead,
    ) -> None:
        self._client = ResourceClient(server, WORKLOADS, read_workload)
        self._cache: Cache[Workload] = Cache(WORKLOADS.plural, self._moved, bulkhead)
        self.reflector: Reflector[Any] = Reflector(self._client, self._cache, clock, optional=True)
        self._by_job: dict[tuple[JobName, str], dict[str, Workload]] = {}
        self._on_change = on_change

    def of(self, state: JobState[Any]) -> Workload | None:
        """The Workload of a job; the newest one while Kueue replaces it.

        Anybody may name the uid of a job of another namespace as an owner, so the namespace and the name count, too.
        """
        found = self._by_job.get((state.name, state.job.metadata.uid), {})
        return max(found.values(), key=lambda each: each.metadata.version, default=None)

    def admission(self, state: JobState[Any]) -> Admission | None:
        """The admission of a job; None if Kueue does not manage it."""
        workload = self.of(state)
        return None if workload is None else workload.admission

    @property
    def empty(self) -> bool:
        """Whether there are none."""
        return not self._by_job

    @property
    def unread(self) -> int:
        """How many of them do not decode, or in outline only."""
        return self.reflector.unread + sum(bool(each.unread) for each in self._cache.objects.values())

    async def activate(self, workload: Workload, *, active: bool) -> None:
        """Takes a job out of its queue, or puts it back: Kueue suspends it, or starts it when there is quota.

        Raises:
            ApiError: The API server refuses or does not answer.
        """
        # One write, so that nobody sees a Workload that is inactive and whose reason is unknown.
        mark = {SUSPENDED_BY: None if active else OURS}
        written = await self._client.merge(workload, {"spec": {"active": active}}, metadata={"annotations": mark})
        self._cache.record_write(written)

    async def boost(self, workload: Workload, value: int) -> None:
        """Writes the boost of a Workload with our mark, or removes both for 0; not if the Workload has changed.

        Raises:
            ApiError: The API server refuses or does not answer.
        """
        text = str(value) if value else None
        annotations = {KUEUE_BOOST: text, PRIORITY_BOOST: text}
        as_read = {"resourceVersion": workload.metadata.resource_version}
        written = await self._client.merge(workload, {}, metadata={"annotations": annotations, **as_read})
        self._cache.record_write(written)

    def _moved(self, before: Workload | None, after: Workload | None) -> None:
        if after is not None and after.unread and (before is None or before.unread != after.unread):
            key, reason = after.metadata.key, one_line(after.unread)
            _log.warning("object.unread", kind=WORKLOADS.plural, namespace=key.namespace, name=key.name, reason=reason)
        earlier, later = None if before is None else before.job, None if after is None else after.job
        if before is not None and earlier is not None:
            others = self._by_job[earlier]
            del others[before.metadata.uid]
            if not others:
                del self._by_job[earlier]
        if after is not None and later is not None:
            self._by_job.setdefault(later, {})[after.metadata.uid] = after
        self._on_change({job[0] for job in (earlier, later) if job is not None})
