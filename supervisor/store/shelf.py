"""One kind of resource as the store keeps it: a mirror of it, and changes that are made where nothing came between."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, TypeVar

import msgspec

from servicekit.failpoints import failpoint
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.errors import ApiError, ConflictError, NotFoundError, RefusedError
from servicekit.kubernetes.objects import ObjectKey
from supervisor.failpoints import At
from supervisor.store.interface import StoreUnavailableError
from supervisor.store.lanes import Change, Lanes, Pending
from supervisor.store.shapes import Shape, Stored

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")
S = TypeVar("S")
U = TypeVar("U")

_MAX_ATTEMPTS = 10
"""Of one change that others come between: nobody should but a person, or a supervisor that does not know its end."""


class Shelf(Generic[K, T, S, U]):
    """All resources of one kind, by id and by resource.

    Args:
        collection: Where they are.
        shape: What they hold.
        changed: Called when a value is another one than before.
    """

    def __init__(
        self, collection: ResourceClient[Stored[T, S, U]], shape: Shape[K, T, S, U], changed: Callable[[], None]
    ) -> None:
        self._collection = collection
        self._shape = shape
        self._changed = changed
        self._newest: dict[K, Stored[T, S, U]] = {}
        self.mirror: Cache[Stored[T, S, U]] = Cache(self._moved)
        self.lanes: Lanes[K, T] = Lanes(self._make)

    def values(self) -> dict[K, T]:
        """The newest value of each id."""
        return {key: stored.value for key, stored in self._newest.items() if stored.value is not None}

    @property
    def newest(self) -> Mapping[K, Stored[T, S, U]]:
        """The resource that holds the newest value of each id, live."""
        return MappingProxyType(self._newest)

    async def change(self, key: K, change: Change[T]) -> T | None:
        """Makes a change to one id's newest value, after those that wait already; returns what came of it.

        Raises:
            StoreUnavailableError: It is not durable.
        """
        return await self.lanes.submit(key, change)

    async def refresh(self) -> None:
        """Brings in what is new or changed, as the watch may be late; what is gone it still has to tell.

        Raises:
            ApiError: It cannot be read.
        """
        objects, _ = await self._collection.list()
        for one in objects:
            self.mirror.record_write(one)

    async def remove(self, stored: Stored[T, S, U]) -> bool:
        """Deletes a resource unless it has changed; whether it is gone.

        Raises:
            StoreUnavailableError: It may not be.
        """
        try:
            return await self._removed(stored)
        except ApiError as error:
            raise StoreUnavailableError(f"cannot delete: {error}") from error

    async def _removed(self, stored: Stored[T, S, U]) -> bool:
        try:
            await self._collection.delete(stored)
        except NotFoundError:
            pass
        except ConflictError:
            await self._look(stored.metadata.key)
            return False
        self.mirror.record_deletion(stored)
        return True

    async def _make(self, key: K, batch: Sequence[Pending[T]]) -> None:
        """Settles or refuses all of a batch."""
        try:
            outcomes = await self._made(key, batch)
        except Exception as error:  # noqa: BLE001 - whatever it is concerns those who wait for it
            if len(batch) > 1 and not _passes(error):
                # One of them is no good: the others are to have what they asked for.
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

    async def _made(self, key: K, batch: Sequence[Pending[T]]) -> list[tuple[Pending[T], T | Exception | None]]:
        """Each change made to the outcome of the one before, and the last outcome in every resource durable."""
        came_between = ""
        for _ in range(_MAX_ATTEMPTS):
            stored = self._newest.get(key)
            outcomes = list(_apply(batch, None if stored is None else stored.value))
            # By resource: a batch may end one episode and begin the next.
            values = [value for _, value in outcomes if not isinstance(value, Exception | None)]
            last = {self._resource(stored, value): value for value in values}
            try:
                for resource, value in last.items():
                    await self._write(resource, value)
            except (ConflictError, NotFoundError) as error:
                came_between = str(error)
                for resource in last:
                    await self._look(resource)
            else:
                return outcomes
        raise StoreUnavailableError(f"somebody else keeps changing it: {came_between}")

    def _resource(self, stored: Stored[T, S, U] | None, value: T) -> ObjectKey:
        """The resource that holds a value already, whatever an earlier version named it; else a new one."""
        known = None if stored is None else stored.value
        same = stored is not None and known is not None and self._shape.rank(known) == self._shape.rank(value)
        return stored.metadata.key if stored is not None and same else self._shape.key(value)

    async def _write(self, resource: ObjectKey, value: T) -> None:
        """Two requests for a new resource, one for a changed value, none where it stands there already."""
        present = self.mirror.objects.get(resource)
        if present is not None and present.value == value:
            return
        spec = self._shape.spec(value, None if present is None else present.spec)
        if present is None:
            # Tried before: what cannot be written is not to leave half of it behind.
            msgspec.json.encode(self._shape.status(value, None))
            present = await self._create(resource, spec, self._shape.metadata(value))
            failpoint(At.RESOURCE_CREATED)
        elif spec != present.spec:
            present = await self._collection.replace(present, "spec", spec)
            self.mirror.record_write(present)
        status = self._shape.status(value, present.status)
        if status != present.status:
            self.mirror.record_write(await self._collection.replace(present, "status", status))
            failpoint(At.RESOURCE_WRITTEN)

    async def _create(self, resource: ObjectKey, spec: S, metadata: Mapping[str, object]) -> Stored[T, S, U]:
        try:
            present = await self._collection.make(resource, {"spec": spec}, **metadata)
        except NotFoundError as error:  # Not the resource: its namespace, or its definition.
            raise RefusedError(str(error)) from error
        self.mirror.record_write(present)
        return present

    async def _look(self, resource: ObjectKey) -> None:
        """Brings one resource up to date, as the watch may not have told yet."""
        try:
            self.mirror.record_write(await self._collection.get(resource))
        except NotFoundError:
            if (known := self.mirror.objects.get(resource)) is not None:
                self.mirror.record_deletion(known)

    def _moved(self, before: Stored[T, S, U] | None, after: Stored[T, S, U] | None) -> None:
        old = None if before is None else before.value
        new = None if after is None else after.value
        if after is not None and new is not None:
            self._rank(after, new)
        elif old is not None and self._newest.get(self._shape.id(old)) is before:
            self._fall_back(old)
        if old != new:
            self._changed()

    def _rank(self, stored: Stored[T, S, U], value: T) -> None:
        """Keeps the newest of each id."""
        known = self._newest.get(self._shape.id(value))
        if known is None or known.value is None or self._shape.rank(value) >= self._shape.rank(known.value):
            self._newest[self._shape.id(value)] = stored

    def _fall_back(self, gone: T) -> None:
        """The newest of an id is gone: the one before counts again, if there is one."""
        key = self._shape.id(gone)
        del self._newest[key]
        if self._shape.rank(gone) <= 1:
            return
        for stored in self.mirror.objects.values():
            if stored.value is not None and self._shape.id(stored.value) == key:
                self._rank(stored, stored.value)


def _apply(batch: Sequence[Pending[T]], known: T | None) -> Iterator[tuple[Pending[T], T | Exception | None]]:
    for pending in batch:
        try:
            outcome = pending.change(known)
        except Exception as refusal:  # noqa: BLE001 - a change that refuses itself concerns its caller alone
            yield pending, refusal
        else:
            known = known if outcome is None else outcome
            yield pending, outcome


def _passes(error: Exception) -> bool:
    """Whether the same request may go well another time."""
    return isinstance(error, StoreUnavailableError) or (
        isinstance(error, ApiError) and not isinstance(error, RefusedError)
    )


def _refusal(error: Exception) -> Exception:
    if not isinstance(error, ApiError):
        return error
    unavailable = StoreUnavailableError(f"cannot write: {error}")
    unavailable.__cause__ = error
    return unavailable
