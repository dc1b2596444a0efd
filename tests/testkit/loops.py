"""Event loops for tests, which run one after another in a process.

gRPC has one completion queue for all loops of a process. An operation that is still outstanding when its test ends
completes later, on the loop of another test, and is passed on to the loop that it belongs to. If that one is closed,
gRPC raises, and the operations behind it in the queue wait until the next one completes: a test that has nothing to do
with it stands still. A service has one loop and never meets this.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple

import uvloop

_Ts = TypeVarTuple("_Ts")


class _AsyncioLoop(asyncio.SelectorEventLoop):
    def call_soon_threadsafe(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self.is_closed():
            return _dropped(self)
        return super().call_soon_threadsafe(callback, *args, context=context)


class _UvloopLoop(uvloop.Loop):
    def call_soon_threadsafe(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        if self.is_closed():
            return _dropped(self)
        return super().call_soon_threadsafe(callback, *args, context=context)


def _dropped(loop: asyncio.AbstractEventLoop) -> asyncio.Handle:
    handle = asyncio.Handle(lambda: None, (), loop)
    handle.cancel()
    return handle


class AsyncioPolicy(asyncio.DefaultEventLoopPolicy):
    """asyncio's own loop."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return _AsyncioLoop()


class UvloopPolicy(asyncio.DefaultEventLoopPolicy):
    """The loop that the services have."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return _UvloopLoop()
