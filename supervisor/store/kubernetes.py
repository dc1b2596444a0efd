"""The cluster's store: custom resources, written where nothing came between, and a mirror that follows them.

What a change returned is durable, as the API server has answered, and stands in `snapshot` at that moment: nobody has
to wait until the watch tells of it. Every value is written whole, so an answer that got lost costs a repetition alone.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

from servicekit.clock import Clock
from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.errors import ApiError, ConfigurationError, NotFoundError
from servicekit.kubernetes.objects import Metadata
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer
from supervisor.domain.ids import JobName, NoticeId
from supervisor.domain.job import Decision, SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.store.interface import (
    MAX_EPISODES,
    JobChange,
    NoticeChange,
    Snapshot,
    StoreError,
    StoreUnavailableError,
    decided_since,
)
from supervisor.store.job_resource import JOBS, JobSpec, JobStatus
from supervisor.store.names import notice_key
from supervisor.store.notice_resource import NOTICES, NoticeSpec, NoticeStatus
from supervisor.store.shapes import JobShape, NoticeShape, Stored
from supervisor.store.shelf import Shelf

_FIRST_EPOCH = 1
"""Of the first leader, and of a supervisor that has no rivals."""

NoticeShelf = Shelf[NoticeId, ReclaimNotice, NoticeSpec, NoticeStatus]
JobShelf = Shelf[JobName, SupervisedJob, JobSpec, JobStatus]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to keep it.

    `kubeconfig` is a file that names the cluster; without, it is this pod's own. `namespace` is that of jobs which were
    registered stand-alone, empty for the configuration's own. `timeout_seconds` is for one request. `epoch` grows from
    leader to leader; the API server refuses a lower one than it has seen.
    """

    kubeconfig: str | None = None
    namespace: str = ""
    timeout_seconds: float = 5.0
    epoch: int = _FIRST_EPOCH
    watch_seconds: int = 60


class KubernetesStore:
    """See `supervisor.store.interface.Store`. Open with `open`, let `run` run, end with `close`."""

    def __init__(self, server: ApiServer, options: Options, clock: Clock) -> None:
        self._server = server
        self._epoch = options.epoch
        notice_shape = NoticeShape(lambda: self._epoch)
        job_shape = JobShape(lambda: self._epoch, options.namespace or server.namespace, clock.now)
        notices = ResourceClient(server, NOTICES, notice_shape.read)
        jobs = ResourceClient(server, JOBS, job_shape.read)
        self._notices: NoticeShelf = Shelf(notices, notice_shape, self._moved)
        self._jobs: JobShelf = Shelf(jobs, job_shape, self._moved)
        self._followers: tuple[Reflector[Any], ...] = (
            Reflector(notices, self._notices.mirror, clock, options.watch_seconds),
            Reflector(jobs, self._jobs.mirror, clock, options.watch_seconds),
        )
        self._version = 1
        self._view: Snapshot | None = None
        self._news = asyncio.Event()

    @classmethod
    async def open(cls, options: Options, clock: Clock) -> Self:
        """Connects and reads everything; waits for an API server that is away.

        Raises:
            StoreError: There is no cluster to connect to, it has no such resources, or they may not be read.
        """
        try:
            server = await ApiServer.connect(options.kubeconfig, options.timeout_seconds)
        except ConfigurationError as error:
            raise StoreError(str(error)) from error
        store = cls(server, options, clock)
        try:
            await store.sync()
        except BaseException:
            await store.close()
            raise
        return store

    async def sync(self) -> None:
        """Reads everything there is.

        Raises:
            StoreError: There are no such resources, or they may not be read.
        """
        try:
            for reflector in self._followers:
                await reflector.first()
        except NotFoundError as error:
            raise StoreError("the cluster does not know our resources: apply the chart's files/crds/ first") from error
        except ApiError as error:
            raise StoreError(f"cannot read the store: {error}") from error

    @property
    def known_epoch(self) -> int:
        """That of the last leader who wrote anything that is here, 0 for none."""
        notices, jobs = self._notices.mirror.objects.values(), self._jobs.mirror.objects.values()
        stored = [part.epoch for part in (*(each.status for each in notices), *(each.status for each in jobs)) if part]
        return max([*stored, *(each.spec.epoch for each in jobs)], default=0)

    async def highest_epoch(self) -> int:
        """As `known_epoch`, after everything was read anew.

        Raises:
            ApiError: It cannot be read.
        """
        await self._notices.refresh()
        await self._jobs.refresh()
        return self.known_epoch

    def lead(self, epoch: int, certain: Callable[[], bool]) -> None:
        """Writes as that leader from now on, and nothing while it is not `certain` to be it still."""
        self._epoch = epoch
        self._server.guard = certain

    def notice_object(self, key: NoticeId) -> Metadata | None:
        """The resource of a notice's newest episode, if there is one."""
        stored = self._notices.newest.get(key)
        return None if stored is None else stored.metadata

    def job_object(self, name: JobName) -> Metadata | None:
        """The resource of a job, if there is one."""
        stored = self._jobs.newest.get(name)
        return None if stored is None else stored.metadata

    @property
    def requests(self) -> int:
        """Sent so far."""
        return self._server.requests

    async def close(self) -> None:
        """Ends the connections; changes still waiting are refused."""
        for shelf in (self._notices, self._jobs):
            shelf.lanes.close()
        await self._server.close()

    async def run(self) -> None:
        """Root task: makes changes and follows; once it has ended, every change is refused."""
        async with asyncio.TaskGroup() as group:
            for lanes in (self._notices.lanes, self._jobs.lanes):
                group.create_task(lanes.run(), name="store.lanes")
            for reflector in self._followers:
                group.create_task(reflector.run(), name="store.follow")

    async def put_notice(self, key: NoticeId, change: NoticeChange) -> ReclaimNotice | None:
        notice = await self._notices.change(key, change)
        if notice is not None and notice.episode > MAX_EPISODES:
            await self._outlive(notice)
        return notice

    async def put_job(self, name: JobName, change: JobChange) -> SupervisedJob | None:
        return await self._jobs.change(name, change)

    async def decide(self, read: SupervisedJob, decision: Decision) -> bool:
        stored = False

        def change(job: SupervisedJob | None) -> SupervisedJob | None:
            nonlocal stored
            stored = job is not None and not decided_since(read, job)
            return replace(job, decision=decision) if job is not None and stored else job

        await self._jobs.change(read.name, change)
        return stored

    def snapshot(self) -> Snapshot:
        if self._view is None:
            self._view = Snapshot(self._version, self._notices.values(), self._jobs.values())
        return self._view

    async def changed(self, since: int) -> Snapshot:
        while self._version <= since:
            await self._news.wait()
        return self.snapshot()

    async def forget_job(self, name: JobName, uid: str) -> None:
        while (stored := self._jobs.newest.get(name)) is not None and _uid(stored) == uid:
            if await self._jobs.remove(stored):
                return

    async def prune(self, before: float) -> int:
        notices = [each for each in self._notices.mirror.objects.values() if _ended(each, before)]
        jobs = [each for each in self._jobs.mirror.objects.values() if _over(each, before)]
        async with _all_or_unavailable() as group:
            removed = [group.create_task(self._notices.remove(each)) for each in notices]
            removed += [group.create_task(self._jobs.remove(each)) for each in jobs]
        return sum(task.result() for task in removed)

    async def _outlive(self, notice: ReclaimNotice) -> None:
        """A source that announces and withdraws without end must not fill the cluster until retention comes round."""
        outlived = self._notices.mirror.objects.get(notice_key(notice.id, notice.episode - MAX_EPISODES))
        if outlived is not None:
            await self._notices.remove(outlived)

    def _moved(self) -> None:
        self._version += 1
        self._view = None
        self._news.set()
        self._news = asyncio.Event()


def _uid(stored: Stored[SupervisedJob, JobSpec, JobStatus]) -> str:
    return stored.spec.uid


def _ended(stored: Stored[ReclaimNotice, NoticeSpec, NoticeStatus], before: float) -> bool:
    if stored.value is None:
        return _abandoned(stored, before)
    return stored.value.ended_at is not None and stored.value.ended_at < before


def _over(stored: Stored[SupervisedJob, JobSpec, JobStatus], before: float) -> bool:
    if stored.value is None:
        return _abandoned(stored, before)
    return stored.value.over and stored.value.observed.registered_at < before


def _abandoned(stored: Stored[Any, Any, Any], before: float) -> bool:
    """Whoever wrote the first half of it never wrote the second."""
    made = stored.metadata.creation_timestamp
    return stored.ours and made is not None and made.timestamp() < before


@asynccontextmanager
async def _all_or_unavailable() -> AsyncIterator[asyncio.TaskGroup]:
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except* StoreUnavailableError as errors:
        raise StoreUnavailableError(str(errors.exceptions[0])) from errors
