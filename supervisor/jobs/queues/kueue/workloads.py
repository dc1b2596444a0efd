"""Reads and changes the Workloads of Kueue.

A Workload has the admission of its job; its field `active` suspends the job.

Kueue takes back what others write into a job's field `suspend` within milliseconds, and restarts a running job whose
size changes. So a job is suspended and resumed by its Workload, and never resized while it runs.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from servicekit.bounds import one_line
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.follower import Follower
from servicekit.kubernetes.objects import Metadata, Object, Owner
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.annotations import OURS, PRIORITY_BOOST, SUSPENDED_BY
from supervisor.cluster.objects import ObjectCondition
from supervisor.domain.ids import JobName, cluster_job
from supervisor.domain.job import Result
from supervisor.jobs.kind import ActionProgress, Admission, J, JobActions, JobState, Right
from supervisor.jobs.registry import KINDS

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

Q = TypeVar("Q", bound=Object)

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


class _WorkloadBody(_WorkloadOutline, frozen=True):
    spec: _WorkloadSpec = _WorkloadSpec()
    status: _WorkloadStatus = _WorkloadStatus()


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One Workload, which Kueue makes for a job that it manages.

    Attributes:
        job: The name and the uid of the job that it was made for; None if that is of no supervised kind.
        active: It takes part in its queue.
        marked: The supervisor has taken it out of its queue, and not put it back.
        reserves_quota: It has a part of its queue's quota.
        may_run: Its job may run, and has not ended.
        admission: The admission of its job; it contains no number, so that it changes only when something happens.
        boost: The boost that the supervisor has written, 0 if there is none.
        boost_of_another: The boost that somebody else has written, empty if there is none.
        boost_marked: The supervisor has written a boost, which somebody may have changed or removed.
        unread: Why only its metadata could be read; empty if all of it could.
    """

    metadata: Metadata
    job: tuple[JobName, str] | None
    active: bool
    marked: bool
    reserves_quota: bool
    may_run: bool
    admission: Admission
    boost: int
    boost_of_another: str
    boost_marked: bool
    unread: str = ""


def read_workload(data: bytes | msgspec.Raw) -> Workload:
    """Decodes a Workload from the API server's JSON, or the metadata of one that this version does not know.

    Raises:
        msgspec.MsgspecError: It has no metadata.
    """
    try:
        read, unread = msgspec.json.decode(data, type=_WorkloadBody), ""
    except msgspec.MsgspecError as error:
        outline = msgspec.json.decode(data, type=_WorkloadOutline)
        read, unread = _WorkloadBody(metadata=outline.metadata), str(error)
    metadata, annotations, active = read.metadata, read.metadata.annotations, read.spec.active
    # Of several conditions of one type the last one counts.
    last = {each.type: each for each in read.status.conditions}
    true = {each.type: each.reason for each in last.values() if each.status == "True"}
    is_evicted, is_finished = WorkloadCondition.EVICTED in true, WorkloadCondition.FINISHED in true
    is_admitted = WorkloadCondition.ADMITTED in true and not is_evicted
    reserves_quota, marked = WorkloadCondition.QUOTA_RESERVED in true, annotations.suspended_by == OURS
    held = f"The job waits in the queue {read.spec.queue_name} of Kueue."
    # Nothing is known about the admission of an unread one, and nobody stops a job because of that.
    if unread or is_admitted or is_finished or (marked and not active):
        held = ""
    elif reserves_quota and is_evicted:
        held = f"Kueue evicts the job: {true[WorkloadCondition.EVICTED]}."
    elif not active:
        held = "The job's Workload was deactivated; somebody has to activate it."
    owner = next((owner for owner in metadata.owner_references if owner.controller), None)
    job = None
    if owner is not None:
        kinds = (kind.name for kind in KINDS if owner.is_of(kind.resource.group, kind.resource.kind))
        if kind_name := next(kinds, None):
            job = cluster_job(metadata.namespace, kind_name, owner.name), owner.uid
    is_ours = annotations.boost == annotations.our_boost and _OUR_BOOST.fullmatch(annotations.boost)
    return Workload(
        metadata=metadata,
        job=job,
        active=active,
        marked=marked,
        reserves_quota=reserves_quota,
        may_run=is_admitted and active and not is_finished,
        admission=Admission(held),
        boost=int(annotations.boost) if is_ours else 0,
        boost_of_another="" if is_ours else annotations.boost,
        boost_marked=bool(annotations.our_boost),
        unread=unread,
    )


class Workloads:
    """Caches and changes the Workloads of a cluster; there are none while Kueue is not installed.

    Args:
        server: The API server.
        clock: For the follower.
        on_change: Called with the names of jobs whose Workload has changed.
        bulkhead: Keeps what nobody foresaw with its Workload.
        namespaces: The namespaces whose Workloads are cached; empty for all.

    Attributes:
        by_job: The Workloads by the name and the uid of their job, and by their own uid.
    """

    def __init__(
        self,
        server: ApiServer,
        clock: Clock,
        on_change: Callable[[Collection[JobName]], None],
        bulkhead: Bulkhead,
        *,
        namespaces: Collection[str] = (),
    ) -> None:
        self._client = ResourceClient(server, WORKLOADS, read_workload)
        self.follower = Follower(self._client, self._moved, clock, bulkhead, namespaces=namespaces)
        self.by_job: dict[tuple[JobName, str], dict[str, Workload]] = {}
        self._on_change = on_change

    def of(self, state: JobState[Any]) -> Workload | None:
        """The Workload of a job. While Kueue replaces it, the newest one counts.

        Anybody may name the uid of a job of another namespace as an owner, so the namespace and the name count, too.
        """
        found = self.by_job.get((state.name, state.job.metadata.uid), {})
        return max(found.values(), key=lambda each: each.metadata.version, default=None)

    def admission(self, state: JobState[Any]) -> Admission | None:
        """The admission of a job; None if Kueue does not manage it."""
        workload = self.of(state)
        return None if workload is None else workload.admission

    @property
    def unread(self) -> int:
        """The number of Workloads that cannot be decoded completely."""
        return len(self.follower.unread) + sum(bool(each.unread) for each in self.follower.objects)

    async def activate(self, workload: Workload, *, active: bool) -> None:
        """Takes a job out of its queue, or puts it back. Kueue suspends the job, or starts it when there is quota.

        Raises:
            ApiError: The API server refuses or does not answer.
        """
        # One write, so that nobody sees a Workload that is inactive and whose reason is unknown.
        mark = {SUSPENDED_BY: None if active else OURS}
        written = await self._client.merge(workload, {"spec": {"active": active}}, metadata={"annotations": mark})
        self.follower.record_write(written)

    async def boost(self, workload: Workload, value: int) -> None:
        """Writes the boost of a Workload with our mark, or removes both for 0; not if the Workload has changed.

        Raises:
            ApiError: The API server refuses or does not answer.
        """
        text = str(value) if value else None
        annotations = {KUEUE_BOOST: text, PRIORITY_BOOST: text}
        as_read = {"resourceVersion": workload.metadata.resource_version}
        written = await self._client.merge(workload, {}, metadata={"annotations": annotations, **as_read})
        self.follower.record_write(written)

    def _moved(self, before: Workload | None, after: Workload | None) -> None:
        if after is not None and after.unread and (before is None or before.unread != after.unread):
            key, reason = after.metadata.key, one_line(after.unread)
            _log.warning("object.unread", kind=WORKLOADS.plural, namespace=key.namespace, name=key.name, reason=reason)
        earlier, later = None if before is None else before.job, None if after is None else after.job
        if before is not None and earlier is not None:
            others = self.by_job[earlier]
            del others[before.metadata.uid]
            if not others:
                del self.by_job[earlier]
        if after is not None and later is not None:
            self.by_job.setdefault(later, {})[after.metadata.uid] = after
        self._on_change({job[0] for job in (earlier, later) if job is not None})


class QueuedJobClient(ResourceClient[Q]):
    """Leaves a job's field `suspend` out of every write, because the queue owns the field and reverts other writers."""

    async def merge(
        self, read: Q, content: Mapping[str, object], part: str = "", *, metadata: Mapping[str, object] | None = None
    ) -> Q:
        def without_suspend(content: Mapping[str, object]) -> Mapping[str, object]:
            kept = {name: value for name, value in content.items() if name != "suspend"}
            return {name: without_suspend(each) if isinstance(each, Mapping) else each for name, each in kept.items()}

        return await super().merge(read, without_suspend(content), part, metadata=metadata)

    async def patch(self, read: Q, operations: Sequence[Mapping[str, object]]) -> Q:
        kept = [each for each in operations if not str(each.get("path")).endswith("/suspend")]
        return await super().patch(read, kept)


class KueueActions(Generic[J]):
    """Implements `JobActions` for jobs that Kueue manages, with the actions of the job's kind.

    Args:
        own: The kind's actions on jobs that no queue manages.
        queued: The kind's actions that leave the field `suspend` alone.
        workloads: The Workloads of the jobs that Kueue manages.
    """

    def __init__(self, own: JobActions[J], queued: JobActions[J], workloads: Workloads) -> None:
        self._own = own
        self._queued = queued
        self._workloads = workloads
        self.standby_tasks, self.leader_tasks = own.standby_tasks, own.leader_tasks
        self.exclude = own.exclude

    async def suspend(self, state: JobState[J]) -> ActionProgress:
        workload = self._workloads.of(state)
        if workload is None:
            return await self._own.suspend(state)
        progress = await self._queued.suspend(state)
        if await self._deactivated(state, workload):
            return ActionProgress.PENDING
        # Kueue gives the quota up before the last pod is gone, or after it.
        return ActionProgress.PENDING if workload.reserves_quota else progress

    async def resume(self, state: JobState[J], workers: int, requested: int) -> ActionProgress:
        """Resumes a job. Kueue activates the Workload when the size changes, so the size is written last."""
        workload = self._workloads.of(state)
        if workload is None:
            return await self._own.resume(state, workers, requested)
        progress = await self._queued.resume(state, workers, requested)
        if progress is not ActionProgress.PENDING and (workload.marked or not workload.active):
            await self._workloads.activate(workload, active=True)
        return progress

    async def grow(self, state: JobState[J], workers: int, number: int, seconds: float) -> None:
        if self._workloads.of(state) is None:
            await self._own.grow(state, workers, number, seconds)

    async def end(self, state: JobState[J], result: Result) -> None:
        workload = self._workloads.of(state)
        if workload is None:
            await self._own.end(state, result)
        else:
            await self._queued.end(state, result)
            await self._deactivated(state, workload)

    def growable(self, state: JobState[J]) -> int:
        return self._own.growable(state) if self._workloads.of(state) is None else 0

    async def _deactivated(self, state: JobState[J], workload: Workload) -> bool:
        """Deactivates a job's Workload; returns False if that was done before, or if the job has succeeded."""
        succeeded = state.launcher is not None and state.launcher.succeeded
        if succeeded or (workload.marked and not workload.active):
            return False
        await self._workloads.activate(workload, active=False)
        return True
