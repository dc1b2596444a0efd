"""The store on a cluster. It changes custom resources by compare-and-swap, and keeps a cache of them.

A change that has returned is durable, as the API server has answered, and `snapshot` shows it at once, before the watch
does. Every value is written whole, so a lost answer costs no more than a repetition. Changes are made in order for one
key, and concurrently across keys; those that wait for one key are one batch. None overwrites another writer's.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Self, TypeVar

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.errors import ApiError, ConfigurationError, ConflictError, NotFoundError, RefusedError
from servicekit.kubernetes.objects import Metadata, ObjectKey
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer, always
from servicekit.reconcile import KeyedWorkQueue
from supervisor.domain.ids import JobName, NoticeId
from supervisor.domain.job import Decision, SupervisedJob, ended_before
from supervisor.domain.notice import ReclaimNotice
from supervisor.failpoints import At
from supervisor.store.codec import JOBS, NOTICE_CODEC, NOTICES, Codec, Fields, StoredRecord, job_codec, notice_key
from supervisor.store.interface import (
    MAX_EPISODES,
    JobChange,
    NoticeChange,
    Snapshot,
    StoreError,
    StoreUnavailableError,
    decided_since,
)

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

Change = Callable[[T | None], T | None]
"""Maps the stored value (None = nothing is stored) to the new one; None leaves it as it is."""

_MAX_ATTEMPTS = 10
"""Attempts at one change that others come between: only a person or a deposed supervisor does that."""


@dataclass(frozen=True, slots=True)
class PendingChange(Generic[T]):
    """A change and the future that its caller awaits."""

    change: Change[T]
    done: asyncio.Future[T | None]

    def settle(self, outcome: T | Exception | None) -> None:
        """Ends the caller's wait with the durable value, or with the error that prevented the change."""
        if self.done.done():
            return
        if isinstance(outcome, Exception):
            self.done.set_exception(outcome)
        else:
            self.done.set_result(outcome)


class TypedStore(Generic[K, T]):
    """All values of one kind, by id.

    Args:
        client: Reads and writes the resources.
        codec: Encodes them.
        epoch: The leader's, which every write carries.
        on_change: Called after a value has changed.
        bulkhead: Confines an unforeseen error to its value.

    Attributes:
        cache: All resources of the kind.
        newest: The record of the newest value of each id, live.
    """

    def __init__(
        self,
        client: ResourceClient[StoredRecord[T]],
        codec: Codec[K, T],
        epoch: int,
        on_change: Callable[[], None],
        bulkhead: Bulkhead,
    ) -> None:
        self._client = client
        self._codec = codec
        self._on_change = on_change
        self._queue = KeyedWorkQueue("store.change", self._make_batch, bulkhead)
        self._waiting: defaultdict[K, list[PendingChange[T]]] = defaultdict(list)
        self._closed = False
        self.epoch = epoch
        self.newest: dict[K, StoredRecord[T]] = {}
        self.cache: Cache[StoredRecord[T]] = Cache(client.resource.plural, self._update_newest, bulkhead)

    async def run(self) -> None:
        """Root task: writes changes; once it has ended, every change is refused."""
        try:
            await self._queue.run()
        finally:
            self.close()

    def close(self) -> None:
        """Refuses all waiting and future changes."""
        self._closed = True
        for waiting in self._waiting.values():
            for pending in waiting:
                pending.settle(StoreUnavailableError("the store is closing"))
        self._waiting.clear()

    async def change(self, key: K, change: Change[T]) -> T | None:
        """Changes the newest value of an id, after the changes that already wait; returns the outcome once durable.

        Raises:
            StoreUnavailableError: The outcome is not durable; the change may have been made.
        """
        if self._closed or self._queue.shutting_down:
            raise StoreUnavailableError("the store is closing")
        pending = PendingChange(change, asyncio.get_running_loop().create_future())
        self._waiting[key].append(pending)
        self._queue.add(key)
        return await pending.done

    async def refresh(self) -> None:
        """Reads new and changed values, because the watch may be late. Only the watch shows deletions.

        Raises:
            ApiError: It cannot be read.
        """
        for record in (await self._client.list()).objects:
            self.cache.record_write(record)

    def outdated(self, before: float, ended: Callable[[T], bool]) -> list[StoredRecord[T]]:
        """Returns records whose value has `ended`, and our own records without a value that were created `before`.

        Our records without a value lack the second request, which writes the status.
        """
        found = list[StoredRecord[T]]()
        for key, record in self.cache.objects.items():
            created = record.metadata.creation_timestamp
            if key in self.cache.unread:
                continue
            if record.value is not None:
                over = ended(record.value)
            else:
                over = record.ours and created is not None and created.timestamp() < before
            if over:
                found.append(record)
        return found

    async def remove(self, record: StoredRecord[T]) -> bool:
        """Deletes a resource unless it has changed; returns whether it is gone.

        Raises:
            StoreUnavailableError: It may still exist.
        """
        try:
            try:
                with suppress(NotFoundError):
                    await self._client.delete(record)
            except ConflictError:
                await self._read_again(record.metadata.key)
                return False
        except ApiError as error:
            raise StoreUnavailableError(f"cannot delete: {error}") from error
        self.cache.record_deletion(record)
        return True

    async def _make_batch(self, key: K) -> None:
        batch = self._waiting.pop(key, [])
        try:
            await self._make(key, batch)
        finally:
            for pending in batch:
                pending.settle(StoreUnavailableError("the change was not made"))

    async def _make(self, key: K, batch: Sequence[PendingChange[T]]) -> None:
        """Settles every change of a batch."""
        try:
            outcomes = await self._write_batch(key, batch)
        except Exception as error:  # noqa: BLE001 - every error concerns those who wait for these changes
            # Whether the same request may succeed at another time.
            is_transient = isinstance(error, StoreUnavailableError | ApiError) and not isinstance(error, RefusedError)
            if len(batch) > 1 and not is_transient:
                # One of them cannot be written: the others still can.
                for pending in batch:
                    await self._make(key, [pending])
                return
            refusal: Exception = error
            if isinstance(error, ApiError):
                refusal = StoreUnavailableError(f"cannot write: {error}")
                refusal.__cause__ = error
            for pending in batch:
                pending.settle(refusal)
            return
        for pending, outcome in zip(batch, outcomes, strict=True):
            pending.settle(outcome)

    async def _write_batch(self, key: K, batch: Sequence[PendingChange[T]]) -> list[T | Exception | None]:
        """Applies each change to the outcome of the one before, and writes the last outcome for every resource.

        Returns the value that each change led to, or why it refused itself.
        """
        came_between = ""
        for _ in range(_MAX_ATTEMPTS):
            record = self.newest.get(key)
            known = None if record is None else record.value
            outcomes = list[T | Exception | None]()
            # By resource: a batch may end one episode and begin the next.
            last = dict[ObjectKey, T]()
            for pending in batch:
                try:
                    outcome = pending.change(known)
                except Exception as refusal:  # noqa: BLE001 - a change that refuses itself concerns its caller alone
                    outcomes.append(refusal)
                    continue
                outcomes.append(outcome)
                if outcome is not None:
                    known = outcome
                    last[self._object_key(record, outcome)] = outcome
            for object_key in last.keys() & self.cache.unread.keys():
                raise StoreUnavailableError(f"{object_key.name} does not decode: delete it, or start its version again")
            try:
                for object_key, value in last.items():
                    await self._write(object_key, value)
            except (ConflictError, NotFoundError) as error:
                came_between = str(error)
                for object_key in last:
                    await self._read_again(object_key)
            else:
                return outcomes
        raise StoreUnavailableError(f"somebody else keeps changing it: {came_between}")

    def _object_key(self, record: StoredRecord[T] | None, value: T) -> ObjectKey:
        """Returns the key of the resource that has the value, even if an earlier version named it, or else a new key.

        A resource that does not decode is not overwritten.
        """
        unread = self.cache.unread
        if record is not None and self._rank(record) == self._codec.rank(value) and record.metadata.key not in unread:
            return record.metadata.key
        return self._codec.object_key(value, unread)

    async def _write(self, key: ObjectKey, value: T) -> None:
        """Writes a changed value in one request, and an unchanged value not at all.

        A new resource takes two where its status is a subresource, as the API server drops the status of the first one.
        """
        record = self.cache.objects.get(key)
        if record is not None and record.value == value:
            return
        spec, status = self._codec.encode(value, record, self.epoch)
        if record is None:
            content, metadata = {"spec": spec, "status": status}, self._codec.metadata(value)
            try:
                record = await self._client.create(key, content, **metadata)
            except NotFoundError as error:  # The namespace or the CRD is missing, not the resource.
                raise RefusedError(str(error)) from error
            self.cache.record_write(record)
            failpoint(At.RESOURCE_CREATED)
        elif _differs(record.resource.spec, spec):
            record = await self._client.replace(record, "spec", spec)
            self.cache.record_write(record)
        if _differs(record.resource.status, status):
            self.cache.record_write(await self._client.replace(record, "status", status))
        failpoint(At.RESOURCE_WRITTEN)

    async def _read_again(self, key: ObjectKey) -> None:
        """Brings one resource up to date, because the watch may be late."""
        try:
            self.cache.record_write(await self._client.get(key))
        except NotFoundError:
            if (known := self.cache.objects.get(key)) is not None:
                self.cache.record_deletion(known)

    def _update_newest(self, before: StoredRecord[T] | None, after: StoredRecord[T] | None) -> None:
        old = None if before is None else before.value
        new = None if after is None else after.value
        candidates = [] if after is None else [after]
        if new is None and old is not None and self.newest.get(key := self._codec.id(old)) is before:
            # The newest value of this id is gone: the one before replaces it, if there is one.
            del self.newest[key]
            if self._codec.rank(old) > 1:
                known = self.cache.objects.values()
                candidates = [each for each in known if each.value is not None and self._codec.id(each.value) == key]
        for record in candidates:
            if record.value is not None:
                key = self._codec.id(record.value)
                if self._codec.rank(record.value) >= self._rank(self.newest.get(key)):
                    self.newest[key] = record
        if old != new:
            self._on_change()

    def _rank(self, record: StoredRecord[T] | None) -> int:
        return -1 if record is None or record.value is None else self._codec.rank(record.value)


def _differs(before: Fields | None, after: Fields) -> bool:
    """Compares two values without the epoch, because a leader writes no value only to record that it leads."""
    return before is None or {**before, "epoch": None} != {**after, "epoch": None}


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
    """Implements `Store` with custom resources. The caller opens it with `open`, runs `run`, and ends it with `close`.

    Attributes:
        server: The connection.
    """

    def __init__(self, server: ApiServer, options: KubernetesStoreOptions, clock: Clock, bulkhead: Bulkhead) -> None:
        self.server = server
        codec = job_codec(options.namespace or server.namespace, clock.now, options.kinds)
        notices = ResourceClient(server, NOTICES, NOTICE_CODEC.read)
        jobs = ResourceClient(server, JOBS, codec.read)
        self._notices = TypedStore(notices, NOTICE_CODEC, options.epoch, self._publish, bulkhead)
        self._jobs = TypedStore(jobs, codec, options.epoch, self._publish, bulkhead)
        self._reflectors: tuple[Reflector[Any], ...] = (
            Reflector(notices, self._notices.cache, clock, options.watch_seconds),
            Reflector(jobs, self._jobs.cache, clock, options.watch_seconds),
        )
        self._version = 1
        self._snapshot: Snapshot | None = None
        self._news = asyncio.Event()

    @classmethod
    async def open(cls, options: KubernetesStoreOptions, clock: Clock, bulkhead: Bulkhead) -> Self:
        """Connects and reads everything; waits for an unavailable API server.

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

    async def close(self) -> None:
        """Ends the connections; changes still waiting are refused."""
        self._notices.close()
        self._jobs.close()
        await self.server.close()

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
