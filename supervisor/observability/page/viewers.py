"""Renders the overview for the streams to browsers, which share every rendering."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.fanout.lines import LineResponse, line
from supervisor.observability.status_view import StatusSnapshot

MAX_VIEWERS = 200
_PAUSE_SECONDS = 1.0
_REFRESH_SECONDS = 5.0
_PAUSE_FACTOR = 20
"""A rendering is followed by a pause of this many times its own duration: viewers never cost more than a twentieth."""

_FAILED = line({"type": "failed"})


class PageViewers:
    """Holds the streams to browsers. `run` renders for them, and only while there are any.

    Args:
        snapshot: Reads the status; called on the loop.
        render: Renders it as HTML; called in a thread, so that it does not block the loop.
        version: Changes whenever something worth showing at once has changed.
        clock: The supervisor's clock.
        bulkhead: Keeps a rendering that raises, so that it is tried again.

    Attributes:
        streams: Those of the present viewers.
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
        self.streams: set[LineResponse] = set()
        self._has_viewers = asyncio.Event()
        self._sent_version: Any = None
        self._sent_at = 0.0
        self._bulkhead = bulkhead

    @contextmanager
    def showing(self, stream: LineResponse) -> Iterator[None]:
        """Adds a viewer while the context lasts; the next rendering goes to all viewers."""
        self.streams.add(stream)
        self._sent_version = None
        self._has_viewers.set()
        try:
            yield
        finally:
            self.streams.discard(stream)
            if not self.streams:
                self._has_viewers.clear()

    def finish(self, reason: str) -> None:
        """Ends every stream with a goodbye."""
        for stream in list(self.streams):
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
        rendered = _FAILED
        with self._bulkhead.guard("page"):
            rendered = line({"type": "page", "html": await asyncio.to_thread(self._render, self._snapshot())})
        for stream in list(self.streams):
            stream.push(rendered)
        self._sent_version, self._sent_at = version, now
