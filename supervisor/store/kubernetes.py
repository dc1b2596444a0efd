"""The store on a cluster: custom resources, changed by compare-and-swap, and a cache that follows them.

A change that has returned is durable, as the API server has answered, and `snapshot` shows it at once, before the watch
does. Every value is written whole, so a lost answer costs no more than a repetition.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.errors import ApiError, ConfigurationError, NotFoundError
from servicekit.kubernetes.objects import Metadata
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer, always
from supervisor.domain.ids import JobName, NoticeId
from supervisor.domain.job import Decision, SupervisedJob, ended_before
from supervisor.domain.notice import ReclaimNotice
from supervisor.store.codec import JOBS, NOTICES, JobCodec, NoticeCodec, notice_key, read_job, read_notice
from supervisor.store.interface import (
    MAX_EPISODES,
    JobChange,
    NoticeChange,
    Snapshot,
    StoreError,
    StoreUnavailableError,
    decided_since,
)
from supervisor.store.typed_store import TypedStore


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesStoreOptions:
    """The connection and the role.

    `kubeconfig` is a file that names the cluster; without it the pod's own account is used. `namespace` is that of jobs
    which were registered stand-alone, empty for the configuration's own. `timeout_seconds` is for one request. `epoch`
    grows from leader to leader, from 1 on; the API server refuses a lower one than it has seen. `kinds` are the API
    resources of the cluster's jobs, by the lower-case kind. `may_write` is called right before every write, and a write
    that it does not allow fails.
    """

    kubeconfig: str | None = None
    namespace: str = ""
    timeout_seconds: float = 5.0
    epoch: int = 1
    watch_seconds: int = 60
    kinds: Mapping[str, Resource] = field(default_factory=dict)
    may_write: Callable[[], bool] = always


class KubernetesStore:
    """Implements `Store` by custom resources. Open it with `open`, let `run` run, and end with `close`."""

    def __init__(self, server: ApiServer, options: KubernetesStoreOptions, clock: Clock, bulkhead: Bulkhead) -> None:
        self._server = server
        home = options.namespace or server.namespace
        notices = ResourceClient(server, NOTICES, read_notice)
        jobs = ResourceClient(server, JOBS, partial(read_job, home=home))
        self._notices = TypedStore(notices, NoticeCodec(), options.epoch, self._publish, bulkhead)
        job_codec = JobCodec(home, clock.now, options.kinds)
        self._jobs = TypedStore(jobs, job_codec, options.epoch, self._publish, bulkhead)
        self._reflectors: tuple[Reflector[Any], ...] = (
            Reflector(notices, self._notices.cache, clock, options.watch_seconds),
            Reflector(jobs, self._jobs.cache, clock, options.watch_seconds),
        )
        self._version = 1
        self._snapshot: Snapshot | None = None
        self._news = asyncio.Event()

    @classmethod
    async def open(cls, options: KubernetesStoreOptions, clock: Clock, bulkhead: Bulkhead) -> Self:
        """Connects and reads everything; waits for an API server that is away.

        Raises:
            StoreError: There is no cluster to connect to, it has no such resources, or they may not be read.
        """
        try:
            server = await ApiServer.connect(options.kubeconfig, options.timeout_seconds, may_write=options.may_write)
        except ConfigurationError as error:
            raise StoreError(str(error)) from error
        store = cls(server, options, clock, bulkhead)
        try:
            await store.sync()
        except BaseException:
            await store.close()
            raise
        return store

    async def sync(self) -> None:
        """Reads everything.

        Raises:
            StoreError: There are no such resources, or they may not be read.
        """
        try:
            for reflector in self._reflectors:
                await reflector.first()
        except NotFoundError as error:
            raise StoreError("the cluster does not know our resources: apply the chart's files/crds/ first") from error
        except ApiError as error:
            raise StoreError(f"cannot read the store: {error}") from error

    @property
    def unread(self) -> Mapping[str, int]:
        """The number of resources that do not decode, by the plural of their kind."""
        return {NOTICES.plural: len(self._notices.cache.unread), JOBS.plural: len(self._jobs.cache.unread)}

    @property
    def known_epoch(self) -> int:
        """The epoch of the last leader whose writes are known, 0 for none."""
        notices, jobs = self._notices.cache.objects.values(), self._jobs.cache.objects.values()
        return max((*(each.epoch for each in notices), *(each.epoch for each in jobs)), default=0)

    async def highest_epoch(self) -> int:
        """Reads everything again and returns `known_epoch`.

        Raises:
            ApiError: It cannot be read.
        """
        await self._notices.refresh()
        await self._jobs.refresh()
        return self.known_epoch

    def lead(self, epoch: int) -> None:
        """Writes as the leader of that epoch."""
        self._notices.epoch = self._jobs.epoch = epoch

    def notice_object(self, key: NoticeId) -> Metadata | None:
        """Returns the metadata of the resource of a notice's newest episode, if there is one."""
        record = self._notices.newest.get(key)
        return None if record is None else record.metadata

    def job_object(self, name: JobName) -> Metadata | None:
        """Returns the metadata of a job's resource, if there is one."""
        record = self._jobs.newest.get(name)
        return None if record is None else record.metadata

    @property
    def requests(self) -> int:
        """The number of requests that this store has sent."""
        return self._server.requests

    async def close(self) -> None:
        """Ends the connections; changes still waiting are refused."""
        self._notices.close()
        self._jobs.close()
        await self._server.close()

    async def run(self) -> None:
        """Root task: makes changes and follows the resources; once it has ended, every change is refused."""
        async with asyncio.TaskGroup() as group:
            for run in (self._notices.run, self._jobs.run):
                group.create_task(run(), name="store.changes")
            for reflector in self._reflectors:
                group.create_task(reflector.run(), name="store.follow")

    async def put_notice(self, key: NoticeId, change: NoticeChange) -> ReclaimNotice | None:
        notice = await self._notices.change(key, change)
        if notice is not None and notice.episode > MAX_EPISODES:
            # A source that announces and withdraws without end must not fill the cluster before the retention ends.
            outlived = self._notices.cache.objects.get(notice_key(notice.id, notice.episode - MAX_EPISODES))
            if outlived is not None:
                await self._notices.remove(outlived)
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
        if self._snapshot is None:
            notices = {key: each.value for key, each in self._notices.newest.items() if each.value is not None}
            jobs = {name: each.value for name, each in self._jobs.newest.items() if each.value is not None}
            self._snapshot = Snapshot(self._version, notices, jobs)
        return self._snapshot

    async def changed(self, since: int) -> Snapshot:
        while self._version <= since:
            await self._news.wait()
        return self.snapshot()

    async def forget_job(self, name: JobName, uid: str) -> None:
        while (record := self._jobs.newest.get(name)) is not None and record.value is not None:
            if record.value.uid != uid or await self._jobs.remove(record):
                return

    async def prune(self, before: float) -> int:
        notices = self._notices.outdated(before, lambda notice: (notice.ended_at or before) < before)
        jobs = self._jobs.outdated(before, lambda job: ended_before(job, before))
        try:
            async with asyncio.TaskGroup() as group:
                removed = [group.create_task(self._notices.remove(each)) for each in notices]
                removed += [group.create_task(self._jobs.remove(each)) for each in jobs]
        except* StoreUnavailableError as errors:
            raise StoreUnavailableError(str(errors.exceptions[0])) from errors
        return sum(task.result() for task in removed)

    def _publish(self) -> None:
        self._version += 1
        self._snapshot = None
        self._news.set()
        self._news = asyncio.Event()
