"""A stream of JSON lines over one chunked HTTP answer.

Chunks are framed here and handed to the transport without awaiting each client: awaiting them one by one makes the last
of 2,000 wait for the first. A consumer whose buffer grows is dropped; it says hello again and gets the present state.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from servicekit.connections import mark_streaming
from supervisor.refusals import Code, Refusals, Wire

_MAX_BUFFERED_BYTES = 256 * 1024  # Beside one line, whose own length is bounded by what launchers may say.
_HEADERS = {"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"}


def line(message: Mapping[str, Any]) -> bytes:
    """One message as a line."""
    return msgspec.json.encode(message) + b"\n"


HEARTBEAT = line({"type": "heartbeat"})


class LineStream:
    """One open answer. `push` from anywhere on the loop; `serve` lives as long as the stream does."""

    def __init__(self, request: web.Request, refusals: Refusals) -> None:
        self._request = request
        self._refusals = refusals
        self._response = web.StreamResponse(headers=_HEADERS)
        self._response.enable_chunked_encoding()
        self._end: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def prepare(self) -> None:
        """Sends the head of the answer."""
        mark_streaming(self._request)
        await self._response.prepare(self._request)

    def push(self, data: bytes) -> None:
        """Sends a line; drops the peer when it does not read."""
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
        """Returns after `finish`; cancelled when the peer goes away."""
        goodbye = await self._end
        await self._response.write(goodbye)
        await self._response.write_eof()
        return self._response
