"""Changes to one key in order, those to different keys side by side; what waits for one key is made together."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from supervisor.store.interface import StoreUnavailableError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

Change = Callable[[T | None], T | None]
"""From what is stored (None = nothing) to what shall be; None leaves it as it is."""


@dataclass(frozen=True, slots=True)
class Pending(Generic[T]):
    """One change, and who waits for it."""

    change: Change[T]
    done: asyncio.Future[T | None]

    def settle(self, value: T | None) -> None:
        """It is durable."""
        if not self.done.done():
            self.done.set_result(value)

    def refuse(self, error: BaseException) -> None:
        """It was not made."""
        if not self.done.done():
            self.done.set_exception(error)


class Lanes(Generic[K, T]):
    """Takes changes and has `make` make them, which settles or refuses each one it is given."""

    def __init__(self, make: Callable[[K, Sequence[Pending[T]]], Awaitable[None]]) -> None:
        self._make = make
        self._waiting: defaultdict[K, list[Pending[T]]] = defaultdict(list)
        self._moving: set[K] = set()
        self._group: asyncio.TaskGroup | None = None
        self._closed = False

    async def submit(self, key: K, change: Change[T]) -> T | None:
        """What the change made of it, once that is durable.

        Raises:
            StoreUnavailableError: It is not.
        """
        if self._closed:
            raise _closing()
        pending = Pending(change, asyncio.get_running_loop().create_future())
        self._waiting[key].append(pending)
        self._start(key)
        return await pending.done

    async def run(self) -> None:
        """Root task: has changes made; once it has ended, every change is refused."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                for key in list(self._waiting):
                    self._start(key)
                await asyncio.get_running_loop().create_future()
            finally:
                self.close()  # Before the group waits for its tasks: it takes no more.

    def close(self) -> None:
        """Refuses what waits, and everything from now on."""
        self._closed = True
        for waiting in self._waiting.values():
            for pending in waiting:
                pending.refuse(_closing())
        self._waiting.clear()

    def _start(self, key: K) -> None:
        if self._group is not None and key not in self._moving:
            self._moving.add(key)
            self._group.create_task(self._move(key), name="store.lane")

    async def _move(self, key: K) -> None:
        batch: list[Pending[T]] = []
        try:
            while batch := self._waiting.pop(key, []):
                await self._make(key, batch)
        finally:
            self._moving.discard(key)
            for pending in batch:
                pending.refuse(_closing())


def _closing() -> StoreUnavailableError:
    return StoreUnavailableError("the store is closing")
