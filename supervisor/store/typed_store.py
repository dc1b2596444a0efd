"""The values of one kind in custom resources: a cache of them, and changes that never overwrite another writer's."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, TypeVar

from servicekit.bulkhead import Bulkhead
from servicekit.failpoints import failpoint
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.errors import ApiError, ConflictError, NotFoundError, RefusedError
from servicekit.kubernetes.objects import ObjectKey
from supervisor.failpoints import At
from supervisor.store.changes import Change, ChangeQueue, PendingChange
from supervisor.store.codec import Codec, Record
from supervisor.store.fields import Fields
from supervisor.store.interface import StoreUnavailableError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

Outcomes = list[tuple[PendingChange[T], T | Exception | None]]
"""The value that each change of a batch led to, or why it was refused."""

_MAX_ATTEMPTS = 10
"""Attempts at one change that others come between: only a person or a deposed supervisor does that."""


class TypedStore(Generic[K, T]):
    """All values of one kind, by id.

    Args:
        client: Reads and writes the resources.
        codec: Encodes and decodes them.
        epoch: The leader's, which every write carries.
        on_change: Called after a value has changed.
        bulkhead: Keeps what nobody foresaw with its value.
    """

    def __init__(
        self,
        client: ResourceClient[Record[T]],
        codec: Codec[K, T],
        epoch: int,
        on_change: Callable[[], None],
        bulkhead: Bulkhead,
    ) -> None:
        self._client = client
        self._codec = codec
        self._on_change = on_change
        self._newest: dict[K, Record[T]] = {}
        self.epoch = epoch
        self.cache: Cache[Record[T]] = Cache(client.resource.plural, self._update_newest, bulkhead)
        self.queue: ChangeQueue[K, T] = ChangeQueue(self._make, bulkhead)

    def values(self) -> dict[K, T]:
        """Returns the newest value of each id."""
        return {key: record.value for key, record in self._newest.items() if record.value is not None}

    @property
    def newest(self) -> Mapping[K, Record[T]]:
        """The record of the newest value of each id, live."""
        return MappingProxyType(self._newest)

    @property
    def known_epoch(self) -> int:
        """The highest epoch in the cache, 0 if there is none."""
        return max((record.epoch for record in self.cache.objects.values()), default=0)

    async def change(self, key: K, change: Change[T]) -> T | None:
        """Changes the newest value of an id, after the changes that wait already; returns the outcome.

        Raises:
            StoreUnavailableError: The outcome is not durable.
        """
        return await self.queue.submit(key, change)

    async def refresh(self) -> None:
        """Reads what is new or changed, as the watch may be late. Only the watch tells of deletions.

        Raises:
            ApiError: It cannot be read.
        """
        for record in (await self._client.list()).objects:
            self.cache.record_write(record)

    def outdated(self, before: float, ended: Callable[[T], bool]) -> list[Record[T]]:
        """Returns the records whose value has `ended`, and our own without a value that were made `before`."""
        return [
            record
            for key, record in self.cache.objects.items()
            if key not in self.cache.unread
            and (_abandoned(record, before) if record.value is None else ended(record.value))
        ]

    async def remove(self, record: Record[T]) -> bool:
        """Deletes a resource unless it has changed; returns whether it is gone.

        Raises:
            StoreUnavailableError: It may still exist.
        """
        try:
            return await self._remove(record)
        except ApiError as error:
            raise StoreUnavailableError(f"cannot delete: {error}") from error

    async def _remove(self, record: Record[T]) -> bool:
        try:
            await self._client.delete(record)
        except NotFoundError:
            pass
        except ConflictError:
            await self._read_again(record.metadata.key)
            return False
        self.cache.record_deletion(record)
        return True

    async def _make(self, key: K, batch: Sequence[PendingChange[T]]) -> None:
        """Settles or refuses every change of a batch."""
        try:
            outcomes = await self._write_batch(key, batch)
        except Exception as error:  # noqa: BLE001 - every error concerns those who wait for these changes
            if len(batch) > 1 and not _is_transient(error):
                # One of them cannot be written: the others still can.
                for pending in batch:
                    await self._make(key, [pending])
                return
            for pending in batch:
                pending.refuse(_refusal(error))
            return
        for pending, outcome in outcomes:
            if isinstance(outcome, Exception):
                pending.refuse(outcome)
            else:
                pending.settle(outcome)

    async def _write_batch(self, key: K, batch: Sequence[PendingChange[T]]) -> Outcomes[T]:
        """Applies each change to the outcome of the one before, and writes the last outcome for every resource."""
        came_between = ""
        for _ in range(_MAX_ATTEMPTS):
            record = self._newest.get(key)
            outcomes = _apply(batch, None if record is None else record.value)
            # By resource: a batch may end one episode and begin the next.
            values = [value for _, value in outcomes if not isinstance(value, Exception | None)]
            last = {self._object_key(record, value): value for value in values}
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

    def _object_key(self, record: Record[T] | None, value: T) -> ObjectKey:
        """Returns the key of the resource that holds the value, however an earlier version named it, or a new key.

        A resource that does not decode is not overwritten.
        """
        unread = self.cache.unread
        if record is not None and self._rank(record) == self._codec.rank(value) and record.metadata.key not in unread:
            return record.metadata.key
        key = self._codec.object_key(value)
        return self._codec.spare_key(key) if key in unread else key

    async def _write(self, key: ObjectKey, value: T) -> None:
        """Writes in one request for a changed value, and none for an unchanged one.

        A new resource takes two where its status is a subresource, as the API server drops the status of the first one.
        """
        record = self.cache.objects.get(key)
        if record is not None and record.value == value:
            return
        spec, status = self._codec.encode(value, record, self.epoch)
        if record is None:
            record = await self._create(key, {"spec": spec, "status": status}, self._codec.metadata(value))
            failpoint(At.RESOURCE_CREATED)
        elif _differs(record.resource.spec, spec):
            record = await self._client.replace(record, "spec", spec)
            self.cache.record_write(record)
        if _differs(record.resource.status, status):
            self.cache.record_write(await self._client.replace(record, "status", status))
        failpoint(At.RESOURCE_WRITTEN)

    async def _create(self, key: ObjectKey, content: Mapping[str, Fields], metadata: Mapping[str, object]) -> Record[T]:
        try:
            record = await self._client.create(key, content, **metadata)
        except NotFoundError as error:  # The namespace or the CRD is missing, not the resource.
            raise RefusedError(str(error)) from error
        self.cache.record_write(record)
        return record

    async def _read_again(self, key: ObjectKey) -> None:
        """Brings one resource up to date, as the watch may be late."""
        try:
            self.cache.record_write(await self._client.get(key))
        except NotFoundError:
            if (known := self.cache.objects.get(key)) is not None:
                self.cache.record_deletion(known)

    def _update_newest(self, before: Record[T] | None, after: Record[T] | None) -> None:
        old = None if before is None else before.value
        new = None if after is None else after.value
        if after is not None and new is not None:
            self._keep_newest(after, new)
        elif old is not None and self._newest.get(self._codec.id(old)) is before:
            self._fall_back(old)
        if old != new:
            self._on_change()

    def _keep_newest(self, record: Record[T], value: T) -> None:
        key = self._codec.id(value)
        if self._codec.rank(value) >= self._rank(self._newest.get(key)):
            self._newest[key] = record

    def _fall_back(self, gone: T) -> None:
        """Replaces the newest value of an id, which is gone, by the one before, if there is one."""
        key = self._codec.id(gone)
        del self._newest[key]
        if self._codec.rank(gone) <= 1:
            return
        for record in self.cache.objects.values():
            if record.value is not None and self._codec.id(record.value) == key:
                self._keep_newest(record, record.value)

    def _rank(self, record: Record[T] | None) -> int:
        return -1 if record is None or record.value is None else self._codec.rank(record.value)


def _apply(batch: Sequence[PendingChange[T]], known: T | None) -> Outcomes[T]:
    outcomes: Outcomes[T] = []
    for pending in batch:
        try:
            outcome = pending.change(known)
        except Exception as refusal:  # noqa: BLE001 - a change that refuses itself concerns its caller alone
            outcomes.append((pending, refusal))
        else:
            known = known if outcome is None else outcome
            outcomes.append((pending, outcome))
    return outcomes


def _differs(before: Fields | None, after: Fields) -> bool:
    """Ignores the epoch: a leader that has nothing else to write does not write that it leads."""
    return before is None or {**before, "epoch": None} != {**after, "epoch": None}


def _abandoned(record: Record[T], before: float) -> bool:
    """Whether nobody has written the status of a resource, in its second request, since that time."""
    created = record.metadata.creation_timestamp
    return record.ours and created is not None and created.timestamp() < before


def _is_transient(error: Exception) -> bool:
    """Whether the same request may succeed at another time."""
    return isinstance(error, StoreUnavailableError) or (
        isinstance(error, ApiError) and not isinstance(error, RefusedError)
    )


def _refusal(error: Exception) -> Exception:
    if not isinstance(error, ApiError):
        return error
    unavailable = StoreUnavailableError(f"cannot write: {error}")
    unavailable.__cause__ = error
    return unavailable
