"""Changes to stored values: in order for one key, concurrent across keys; those that wait for one key are one batch."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from servicekit.bulkhead import Bulkhead
from servicekit.workqueue import KeyedWorkQueue
from supervisor.store.interface import StoreUnavailableError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

Change = Callable[[T | None], T | None]
"""Maps the stored value (None = nothing is stored) to the new one; None leaves it as it is."""


@dataclass(frozen=True, slots=True)
class PendingChange(Generic[T]):
    """A change and the future that its caller awaits."""

    change: Change[T]
    done: asyncio.Future[T | None]

    def settle(self, value: T | None) -> None:
        """The change is durable."""
        if not self.done.done():
            self.done.set_result(value)

    def refuse(self, error: BaseException) -> None:
        """The change was not made."""
        if not self.done.done():
            self.done.set_exception(error)


class ChangeQueue(Generic[K, T]):
    """Has `make` write the changes that are submitted; it settles or refuses each change of its batch."""

    def __init__(self, make: Callable[[K, Sequence[PendingChange[T]]], Awaitable[None]], bulkhead: Bulkhead) -> None:
        self._make = make
        self._queue = KeyedWorkQueue("store.change", self._make_batch, bulkhead)
        self._waiting: defaultdict[K, list[PendingChange[T]]] = defaultdict(list)
        self._closed = False

    async def submit(self, key: K, change: Change[T]) -> T | None:
        """Returns the value once the change is durable.

        Raises:
            StoreUnavailableError: The change may not have been made.
        """
        if self._closed or self._queue.shutting_down:
            raise _closing()
        pending = PendingChange(change, asyncio.get_running_loop().create_future())
        self._waiting[key].append(pending)
        self._queue.add(key)
        return await pending.done

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
                pending.refuse(_closing())
        self._waiting.clear()

    async def _make_batch(self, key: K) -> None:
        batch = self._waiting.pop(key, [])
        try:
            await self._make(key, batch)
        finally:
            for pending in batch:
                pending.refuse(StoreUnavailableError("the change was not made"))


def _closing() -> StoreUnavailableError:
    return StoreUnavailableError("the store is closing")
