"""The cache of the Workloads, by the job that each was made for."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.annotations import OURS, PRIORITY_BOOST, SUSPENDED_BY
from supervisor.domain.ids import JobName
from supervisor.jobs.kind import Admission, Right
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
        self._by_job: dict[str, dict[str, Workload]] = {}
        self._on_change = on_change

    def of(self, uid: str) -> Workload | None:
        """The Workload of the job with that uid; the newest one while Kueue replaces it."""
        return max(self._by_job.get(uid, {}).values(), key=lambda each: each.metadata.version, default=None)

    @property
    def empty(self) -> bool:
        """Whether there are none."""
        return not self._by_job

    def admission(self, uid: str) -> Admission | None:
        """The admission of the job with that uid; None if Kueue does not manage it."""
        workload = self.of(uid)
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
        if before is not None and before.owner is not None:
            others = self._by_job[before.owner.uid]
            del others[before.metadata.uid]
            if not others:
                del self._by_job[before.owner.uid]
        if after is not None and after.owner is not None:
            self._by_job.setdefault(after.owner.uid, {})[after.metadata.uid] = after
        names = {each.job for each in (before, after) if each is not None}
        self._on_change({name for name in names if name is not None})
