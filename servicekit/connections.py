"""What one connection to an HTTP server may take: aiohttp itself waits for ever for a request that never comes.

A connection always has a deadline, except while its answer is a stream: for a complete head once it is open or idle,
and for the rest of the request and its answer once the head is there. No byte in between extends it.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import cast

from aiohttp import web

from servicekit.address import Address
from servicekit.server_name import hide_versions

_CLOSE_SECONDS = 2.0  # For the peer's part in the end of a TLS connection; 30 where nothing is said.
_UNANSWERED_MILLISECONDS = 15_000  # As the wire's silence. The system's own patience is some 16 minutes.
_BACKLOG = 4096  # 128 makes a reconnect storm of 2,000 take 28 s.

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Drop(StrEnum):
    """Why a connection was dropped."""

    NO_REQUEST = "no request"
    TOO_SLOW = "request or answer too slow"
    TOO_MANY = "more than one request at a time"
    IDLE = "no further request"
    """Nothing is wrong with it: it has done its work."""


OnDrop = Callable[[Drop], None]
"""Told of each connection that was dropped."""


class Connection(asyncio.Protocol):
    """Stands between a transport and aiohttp's part of the connection, and watches the time.

    Args:
        inner: aiohttp's part.
        patience: Seconds for a complete head, and again for the rest of the request and the whole answer.
        dropped: Told of the end that is not the peer's.
    """

    __slots__ = ("_deadline", "_dropped", "_inner", "_otherwise", "_patience", "_request", "_transport")

    def __init__(self, inner: asyncio.Protocol, patience: float, dropped: OnDrop) -> None:
        self._inner = inner
        self._patience = patience
        self._dropped = dropped
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._otherwise = Drop.NO_REQUEST
        self._request: web.Request | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open, and encrypted if it is meant to be."""
        # Not a matter for isinstance: uvloop's transports are of no class of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        _bound_silence(transport)
        self._expect(Drop.NO_REQUEST)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Hands on what belongs to a request; nobody honest sends more before that is answered."""
        if self._request is not None and self._request.content.is_eof():
            self._drop(Drop.TOO_MANY)
        else:
            if self._otherwise is Drop.IDLE:
                self._otherwise = Drop.NO_REQUEST
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """The peer has nothing more to say."""
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._disarm()
        self._transport = self._request = None
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """The peer reads too slowly."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self._inner.resume_writing()

    def begin(self, request: web.Request) -> None:
        """A complete head is there."""
        self._request = request
        self._expect(Drop.TOO_SLOW)

    def stream(self) -> None:
        """The answer takes as long as it takes: whoever sends it sees to peers that do not read."""
        self._disarm()

    def end(self) -> None:
        """The answer is there, and has to be taken; then the next request may come."""
        self._request = None
        if self._transport is not None:
            self._expect(Drop.IDLE)

    def _expect(self, otherwise: Drop) -> None:
        self._disarm()
        self._otherwise = otherwise
        self._deadline = asyncio.get_running_loop().call_later(self._patience, self._late)

    def _late(self) -> None:
        self._drop(self._otherwise)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _drop(self, why: Drop) -> None:
        self._disarm()
        if self._transport is not None:
            self._dropped(why)
            self._transport.abort()


class GuardedSite(web.BaseSite):
    """Where a server listens, with a `Connection` for each peer. The application needs the `timed` middleware.

    Args:
        runner: Set up already.
        address: Port 0 takes a free one.
        context: Serves the certificate; None serves without TLS.
        patience: Seconds for the TLS handshake, and then as each `Connection` has it.
        dropped: As a `Connection` has it.
    """

    def __init__(
        self,
        runner: web.AppRunner,
        address: Address,
        context: ssl.SSLContext | None,
        *,
        patience: float,
        dropped: OnDrop,
    ) -> None:
        super().__init__(runner, ssl_context=context, backlog=_BACKLOG)
        self._patience = patience
        self._address = address
        self._dropped = dropped

    @property
    def name(self) -> str:
        """For people."""
        return str(self._address)

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: The address cannot be had.
        """
        hide_versions()
        await super().start()
        secured = self._ssl_context is not None
        self._server = await asyncio.get_running_loop().create_server(
            self._connection,
            self._address.host,
            self._address.port,
            backlog=self._backlog,
            ssl=self._ssl_context,
            ssl_handshake_timeout=self._patience if secured else None,
            ssl_shutdown_timeout=_CLOSE_SECONDS if secured else None,
        )

    def _connection(self) -> Connection:
        server = self._runner.server
        if server is None:
            raise ConnectionAbortedError("the server has stopped")
        return Connection(server(), self._patience, self._dropped)


@web.middleware
async def timed(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Tells the connection when a request begins and ends; the outermost middleware."""
    connection = _of(request)
    if connection is None:
        return await handler(request)
    connection.begin(request)
    try:
        return await handler(request)
    finally:
        connection.end()


def mark_streaming(request: web.Request) -> None:
    """Say that the answer to this request is a stream."""
    connection = _of(request)
    if connection is not None:
        connection.stream()


def _of(request: web.Request) -> Connection | None:
    protocol = None if request.transport is None else request.transport.get_protocol()
    return protocol if isinstance(protocol, Connection) else None


def _bound_silence(transport: asyncio.BaseTransport) -> None:
    """Give up a peer that acknowledges nothing.

    Keepalive would not: while something unacknowledged is on its way, as heartbeats are, it is not asked.
    """
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MILLISECONDS)
