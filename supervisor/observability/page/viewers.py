"""Those who have the page open: one rendering for all of them, as a stream of lines."""

import asyncio
from collections.abc import Callable
from typing import Any

from servicekit.clock import Clock
from servicekit.faults import Fault
from supervisor.fanout.lines import LineStream, line
from supervisor.observability.snapshot import StatusSnapshot

MAX_VIEWERS = 200
_PAUSE_SECONDS = 1.0
_WORD_SECONDS = 5.0
_SHARE = 20
"""A rendering is followed by a pause of so many times its own length: with whatever there is to show, viewers cost the
line a twentieth at most."""

_FAILED = line({"type": "failed"})


class Viewers:
    """Streams to browsers. `run` renders for them, and only while there are any.

    Args:
        look: What is so now; called on the loop.
        render: To HTML; called in a thread, so that whoever needs the loop does not wait for it.
        version: Another value whenever something worth showing at once has changed.
        clock: The supervisor's.
    """

    def __init__(
        self,
        snapshot: Callable[[], StatusSnapshot],
        render: Callable[[StatusSnapshot], str],
        version: Callable[[], Any],
        clock: Clock,
    ) -> None:
        self._snapshot = snapshot
        self._render = render
        self._version = version
        self._clock = clock
        self._streams: set[LineStream] = set()
        self._somebody = asyncio.Event()
        self._shown: Any = None
        self._said = 0.0
        self._fault = Fault("status page", clock)

    @property
    def full(self) -> bool:
        """No more can be taken in."""
        return len(self._streams) >= MAX_VIEWERS

    def attach(self, stream: LineStream) -> None:
        """Somebody looks: the next rendering is for everybody."""
        self._streams.add(stream)
        self._shown = None
        self._somebody.set()

    def detach(self, stream: LineStream) -> None:
        """And has gone."""
        self._streams.discard(stream)
        if not self._streams:
            self._somebody.clear()

    def finish(self, reason: str) -> None:
        """Says goodbye on every stream."""
        for stream in list(self._streams):
            stream.finish(reason)

    async def run(self) -> None:
        """Root task."""
        while True:
            await self._somebody.wait()
            started = self._clock.monotonic()
            await self.once()
            await asyncio.sleep(max(_PAUSE_SECONDS, _SHARE * (self._clock.monotonic() - started)))

    async def once(self) -> None:
        """Shows what is new; and all of it when nothing was said for a while, as figures that count drift."""
        version, now = self._version(), self._clock.monotonic()
        if version == self._shown and now - self._said < _WORD_SECONDS:
            return
        said = await self._rendered()
        for stream in list(self._streams):
            stream.push(said)
        self._shown, self._said = version, now

    async def _rendered(self) -> bytes:
        try:
            html = await asyncio.to_thread(self._render, self._snapshot())
        except Exception as error:  # noqa: BLE001 - whatever it is, the line goes on
            self._fault.failed(repr(error))
            return _FAILED
        self._fault.recovered()
        return line({"type": "page", "html": html})
