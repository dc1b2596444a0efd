"""Keeps the values of one kind in custom resources: a cache of them, and changes that never overwrite another writer's.

Changes are made in order for one key, and concurrently across keys; those that wait for one key are one batch.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from servicekit.bulkhead import Bulkhead
from servicekit.failpoints import failpoint
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.errors import ApiError, ConflictError, NotFoundError, RefusedError
from servicekit.kubernetes.objects import ObjectKey
from servicekit.reconcile import KeyedWorkQueue
from supervisor.failpoints import At
from supervisor.store.codec import Codec, Fields, StoredRecord
from supervisor.store.interface import StoreUnavailableError

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
        """Ends the wait: with the value that is durable, or with the error for which the change was not made."""
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
        """Changes the newest value of an id, after the changes that wait already; returns the outcome once durable.

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
        """Reads what is new or changed, as the watch may be late. Only the watch tells of deletions.

        Raises:
            ApiError: It cannot be read.
        """
        for record in (await self._client.list()).objects:
            self.cache.record_write(record)

    def outdated(self, before: float, ended: Callable[[T], bool]) -> list[StoredRecord[T]]:
        """Returns the records whose value has `ended`, and our own without a value that were made `before`.

        Nobody has written the status of those, in the second request.
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
        """Returns the key of the resource that holds the value, however an earlier version named it, or a new key.

        A resource that does not decode is not overwritten.
        """
        unread = self.cache.unread
        if record is not None and self._rank(record) == self._codec.rank(value) and record.metadata.key not in unread:
            return record.metadata.key
        return self._codec.object_key(value, unread)

    async def _write(self, key: ObjectKey, value: T) -> None:
        """Writes in one request for a changed value, and none for an unchanged one.

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
        """Brings one resource up to date, as the watch may be late."""
        try:
            self.cache.record_write(await self._client.get(key))
        except NotFoundError:
            if (known := self.cache.objects.get(key)) is not None:
                self.cache.record_deletion(known)

    def _update_newest(self, before: StoredRecord[T] | None, after: StoredRecord[T] | None) -> None:
        old = None if before is None else before.value
        new = None if after is None else after.value
        if after is not None and new is not None:
            self._keep_newest(after, new)
        elif old is not None and self.newest.get(key := self._codec.id(old)) is before:
            # The newest value of this id is gone: the one before replaces it, if there is one.
            del self.newest[key]
            if self._codec.rank(old) > 1:
                for record in self.cache.objects.values():
                    if record.value is not None and self._codec.id(record.value) == key:
                        self._keep_newest(record, record.value)
        if old != new:
            self._on_change()

    def _keep_newest(self, record: StoredRecord[T], value: T) -> None:
        key = self._codec.id(value)
        if self._codec.rank(value) >= self._rank(self.newest.get(key)):
            self.newest[key] = record

    def _rank(self, record: StoredRecord[T] | None) -> int:
        return -1 if record is None or record.value is None else self._codec.rank(record.value)


def _differs(before: Fields | None, after: Fields) -> bool:
    """Compares without the epoch: a leader that has nothing else to write does not write that it leads."""
    return before is None or {**before, "epoch": None} != {**after, "epoch": None}
