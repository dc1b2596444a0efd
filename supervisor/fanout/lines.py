"""Streams JSON lines over chunked HTTP responses, with heartbeats on all of them from one timer.

Chunks are framed here and written to the transport without waiting for each client: waiting for them one by one makes
the last of 2,000 wait for all others. A client whose buffer grows is dropped; it reconnects and gets the present state.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
from aiohttp import web

from servicekit.bulkhead import Bulkhead
from servicekit.http_server import mark_streaming
from supervisor.refusals import Code, Refusals, Wire

_MAX_BUFFERED_BYTES = 256 * 1024  # In addition to one line, whose length is bounded by the limits of messages.
_PATIENCE_HEADER = "Heartbeat-Seconds"
_MAX_PATIENCE = 600.0
_HEADERS = {"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"}


def line(message: Mapping[str, Any]) -> bytes:
    """Encodes a message as one line."""
    return msgspec.json.encode(message) + b"\n"


_HEARTBEAT = line({"type": "heartbeat"})


class LineResponse:
    """Sends lines on one open response. `push` may be called anywhere on the loop; `serve` returns at the end."""

    def __init__(self, request: web.Request, refusals: Refusals) -> None:
        self._request = request
        self._refusals = refusals
        self._response = web.StreamResponse(headers=_HEADERS)
        self._response.enable_chunked_encoding()
        self._end: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._quiet = 0.0
        # The longest pause between lines, in seconds, that the peer can do with; 0 if it names none.
        try:
            patience = float(request.headers.get(_PATIENCE_HEADER, "0"))
        except ValueError:
            patience = 0.0
        self._patience = patience if 0.0 <= patience <= _MAX_PATIENCE else 0.0

    async def prepare(self) -> None:
        """Sends the head of the response.

        Raises:
            ConnectionError: The peer is gone.
        """
        mark_streaming(self._request)
        await self._response.prepare(self._request)

    def heartbeat(self, seconds: float) -> None:
        """Sends a heartbeat if the peer cannot wait for the next turn, which comes in `seconds`."""
        self._quiet += seconds
        if self._quiet + seconds > self._patience:
            self.push(_HEARTBEAT)

    def push(self, data: bytes) -> None:
        """Sends a line; drops a peer that does not read."""
        self._quiet = 0.0
        transport = self._request.transport
        if transport is None or transport.is_closing() or self._end.done():
            return
        if transport.get_write_buffer_size() > _MAX_BUFFERED_BYTES:
            self._refusals.add(Wire.HTTP, Code.SLOW_READER, f"{self._request.path} does not read")
            transport.abort()
            return
        transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def finish(self, reason: str) -> None:
        """Ends the stream with a goodbye."""
        if not self._end.done():
            self._end.set_result(line({"type": "goodbye", "reason": reason}))

    async def serve(self) -> web.StreamResponse:
        """Serves until `finish` is called. The server cancels this call when the peer disconnects.

        Raises:
            ConnectionError: The peer disconnected in the same moment.
        """
        goodbye = await self._end
        await self._response.write(goodbye)
        await self._response.write_eof()
        return self._response


class HeartbeatStreams(Protocol):
    """Streams of one kind of peer."""

    async def heartbeat(self, seconds: float) -> None:
        """Gives each stream its turn, which comes every `seconds`. The stream sends a heartbeat if one is due."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Gives every stream a turn every `seconds`."""

    streams: Sequence[HeartbeatStreams]
    seconds: float
    bulkhead: Bulkhead

    async def run(self) -> None:
        """Root task: sends heartbeats."""
        while True:
            await asyncio.sleep(self.seconds)
            for each in self.streams:
                with self.bulkhead.guard("heartbeat", type(each).__name__):
                    await each.heartbeat(self.seconds)
