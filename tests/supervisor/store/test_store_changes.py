"""Changes that are queued while the store closes."""

import asyncio
import contextlib
from collections.abc import Sequence

import pytest

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.store.changes import ChangeQueue, PendingChange
from supervisor.store.interface import StoreUnavailableError
from tests.testkit.waiting import PATIENCE


async def test_a_change_that_comes_while_another_one_ends_is_refused() -> None:
    """As one that may be tried again, not as a fault: what ends may take a moment."""
    making, ending, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def make(_key: str, _batch: Sequence[PendingChange[int]]) -> None:
        making.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ending.set()
            await ended.wait()

    queue: ChangeQueue[str, int] = ChangeQueue(make, Bulkhead(Clock()))
    running = asyncio.create_task(queue.run())
    first = asyncio.create_task(queue.submit("a", lambda _: 1))
    async with asyncio.timeout(PATIENCE):
        await making.wait()
        running.cancel()
        await ending.wait()
        with pytest.raises(StoreUnavailableError):
            await queue.submit("b", lambda _: 1)
        ended.set()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        with pytest.raises(StoreUnavailableError):
            await first
