"""Changes of custom resources that are waiting while the store closes."""

import asyncio
import contextlib
from typing import Any, cast

import pytest

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.domain.ids import NoticeId
from supervisor.domain.notice import ReclaimNotice
from supervisor.store.codec import NOTICE_CODEC, NOTICES
from supervisor.store.interface import StoreUnavailableError
from supervisor.store.kubernetes import TypedStore
from tests.supervisor.decide.decide_builders import notice
from tests.supervisor.store.store_behaviour import to
from tests.testkit.waiting import PATIENCE


class _StuckClient:
    """A client whose request is not answered, and takes a moment to end."""

    resource = NOTICES

    def __init__(self) -> None:
        self.asked, self.cancelled, self.ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def create(self, *_key_and_content: object, **_metadata: object) -> None:
        self.asked.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            self.cancelled.set()
            await self.ended.wait()


async def test_a_change_that_comes_while_another_one_ends_is_refused() -> None:
    """As one that may be tried again, not as a fault: what ends may take a moment."""
    client = _StuckClient()
    store = TypedStore[NoticeId, ReclaimNotice](cast("Any", client), NOTICE_CODEC, 1, lambda: None, Bulkhead(Clock()))
    running = asyncio.create_task(store.run())
    first = asyncio.create_task(store.change(notice(1).id, to(notice(1))))
    async with asyncio.timeout(PATIENCE):
        await client.asked.wait()
        running.cancel()
        await client.cancelled.wait()
        with pytest.raises(StoreUnavailableError):
            await store.change(notice(2).id, to(notice(2)))
        client.ended.set()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        with pytest.raises(StoreUnavailableError):
            await first
