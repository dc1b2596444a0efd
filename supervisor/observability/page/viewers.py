"""Streams the page to all open browsers, from one rendering for all of them."""

import asyncio
from collections.abc import Callable
from typing import Any

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.fanout.lines import LineStream, line
from supervisor.observability.snapshot import StatusSnapshot

MAX_VIEWERS = 200
_PAUSE_SECONDS = 1.0
_REFRESH_SECONDS = 5.0
_PAUSE_FACTOR = 20
"""A rendering is followed by a pause of this many times its own duration: viewers never cost more than a twentieth."""

_FAILED = line({"type": "failed"})


class Viewers:
    """Streams to browsers. `run` renders for them, and only while there are any.

    Args:
        snapshot: Reads the status; called on the loop.
        render: Renders it as HTML; called in a thread, so that it does not block the loop.
        version: Changes whenever something worth showing at once has changed.
        clock: The supervisor's clock.
        bulkhead: Keeps a rendering that raises, so that it is tried again.
    """

    def __init__(
        self,
        snapshot: Callable[[], StatusSnapshot],
        render: Callable[[StatusSnapshot], str],
        version: Callable[[], Any],
        clock: Clock,
        bulkhead: Bulkhead,
    ) -> None:
        self._snapshot = snapshot
        self._render = render
        self._version = version
        self._clock = clock
        self._streams: set[LineStream] = set()
        self._has_viewers = asyncio.Event()
        self._sent_version: Any = None
        self._sent_at = 0.0
        self._bulkhead = bulkhead

    @property
    def full(self) -> bool:
        """Whether the maximum number of viewers is reached."""
        return len(self._streams) >= MAX_VIEWERS

    def attach(self, stream: LineStream) -> None:
        """Adds a viewer; the next rendering goes to all viewers."""
        self._streams.add(stream)
        self._sent_version = None
        self._has_viewers.set()

    def detach(self, stream: LineStream) -> None:
        self._streams.discard(stream)
        if not self._streams:
            self._has_viewers.clear()

    def finish(self, reason: str) -> None:
        """Ends every stream with a goodbye."""
        for stream in list(self._streams):
            stream.finish(reason)

    async def run(self) -> None:
        """Root task: renders while there are viewers."""
        while True:
            await self._has_viewers.wait()
            started = self._clock.monotonic()
            await self.once()
            await asyncio.sleep(max(_PAUSE_SECONDS, _PAUSE_FACTOR * (self._clock.monotonic() - started)))

    async def once(self) -> None:
        """Renders if something has changed, or if the last rendering is old: counters in browsers drift."""
        version, now = self._version(), self._clock.monotonic()
        if version == self._sent_version and now - self._sent_at < _REFRESH_SECONDS:
            return
        rendered = await self._rendered()
        for stream in list(self._streams):
            stream.push(rendered)
        self._sent_version, self._sent_at = version, now

    async def _rendered(self) -> bytes:
        with self._bulkhead.guard("page"):
            return line({"type": "page", "html": await asyncio.to_thread(self._render, self._snapshot())})
        return _FAILED
