"""The cache of the Workloads, by the job that each was made for."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import structlog

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer
from servicekit.text import one_line
from supervisor.cluster.annotations import OURS, PRIORITY_BOOST, SUSPENDED_BY
from supervisor.domain.ids import JobName
from supervisor.jobs.kind import Admission, JobState, Right
from supervisor.jobs.queues.kueue.workload import KUEUE_BOOST, WORKLOADS, Workload, read_workload

RIGHTS = (
    Right(
        group=WORKLOADS.group,
        resources=(WORKLOADS.plural,),
        verbs=("get", "list", "watch", "patch"),
        reason="to see which jobs Kueue admits and evicts, to suspend and resume them by `spec.active`, and to write "
        "their priority boost if a setting asks for it",
    ),
)


_log = structlog.get_logger()

_Job = tuple[JobName, str]
"""The name and the uid of a job."""


class Workloads:
    """The Workloads of a cluster; there are none while Kueue is not installed.

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
        self._by_job: dict[_Job, dict[str, Workload]] = {}
        self._on_change = on_change

    def of(self, state: JobState[Any]) -> Workload | None:
        """The Workload of a job; the newest one while Kueue replaces it.

        Anybody may name the uid of a job of another namespace as an owner, so the namespace and the name count, too.
        """
        found = self._by_job.get((state.name, state.job.metadata.uid), {})
        return max(found.values(), key=lambda each: each.metadata.version, default=None)

    @property
    def empty(self) -> bool:
        """Whether there are none."""
        return not self._by_job

    @property
    def unread(self) -> int:
        """How many of them do not decode, or in outline only."""
        return self.reflector.unread + sum(bool(each.unread) for each in self._cache.objects.values())

    def admission(self, state: JobState[Any]) -> Admission | None:
        """The admission of a job; None if Kueue does not manage it."""
        workload = self.of(state)
        return None if workload is None else workload.admission

    async def deactivate(self, workload: Workload) -> None:
        """Takes a job out of its queue: Kueue suspends it, and does not start it again.

        Raises:
            ApiError: The API server refuses or does not answer.
        """
        await self._change(workload, active=False, mark=OURS)

    async def activate(self, workload: Workload) -> None:
        """Puts a job back into its queue: Kueue starts it when there is quota.

        Raises:
            ApiError: The API server refuses or does not answer.
        """
        await self._change(workload, active=True, mark=None)

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

    async def _change(self, workload: Workload, *, active: bool, mark: str | None) -> None:
        # One write, so that nobody sees a Workload that is inactive and whose reason is unknown.
        spec: Mapping[str, object] = {"spec": {"active": active}}
        written = await self._client.merge(workload, spec, metadata={"annotations": {SUSPENDED_BY: mark}})
        self._cache.record_write(written)

    def _moved(self, before: Workload | None, after: Workload | None) -> None:
        if after is not None and after.unread and (before is None or before.unread != after.unread):
            key, reason = after.metadata.key, one_line(after.unread)
            _log.warning("object.unread", kind=WORKLOADS.plural, namespace=key.namespace, name=key.name, reason=reason)
        earlier, later = _job(before), _job(after)
        if before is not None and earlier is not None:
            others = self._by_job[earlier]
            del others[before.metadata.uid]
            if not others:
                del self._by_job[earlier]
        if after is not None and later is not None:
            self._by_job.setdefault(later, {})[after.metadata.uid] = after
        self._on_change({job[0] for job in (earlier, later) if job is not None})


def _job(workload: Workload | None) -> _Job | None:
    """The job that a Workload was made for; None if that is of no supervised kind."""
    if workload is None or workload.owner is None or workload.job is None:
        return None
    return workload.job, workload.owner.uid
