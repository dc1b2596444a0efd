"""Serves HTTP: connections with deadlines, the server for probes, and a `Server` header without versions.

aiohttp itself waits for ever for a request that never comes. Here a connection always has a deadline, except while its
answer is a stream: first for a complete head, after that for the rest of the request and its answer, and then for the
first byte of a further request, with which it begins anew. No other byte extends it.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import cast

import msgspec
from aiohttp import web, web_response

from servicekit.address import Address
from servicekit.lifecycle import Health
from servicekit.listener import Listener, TlsOfPeers
from servicekit.open_connections import OpenConnections

_SERVER_NAME = "job-supervisor"

_CLOSE_SECONDS = 2.0  # For the peer's part in the end of a TLS connection; the default is 30.
_UNANSWERED_MILLISECONDS = 15_000  # The silence after which the wire gives up a peer. The system's default: 16 minutes.
_PROBE_SECONDS = 10.0
_BACKLOG = 4096  # 128 makes a reconnect storm of 2,000 take 28 s.

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Drop(StrEnum):
    """Why a connection was dropped."""

    NO_REQUEST = "no request"
    TOO_SLOW = "request or answer too slow"
    TOO_MANY = "more than one request at a time"
    IDLE = "no further request"
    """Not a fault: the connection has done its work."""


OnDrop = Callable[[Drop], None]
"""Called for each connection that was dropped."""


def ignore_drop(_why: Drop) -> None:
    """Does nothing, because the peer asks again in a moment: Prometheus, or a kubelet."""


class GuardedConnection(asyncio.Protocol):
    """Stands between a transport and aiohttp's protocol, and enforces the deadlines.

    Args:
        inner: aiohttp's protocol.
        timeout_seconds: For a complete head, and again for the rest of the request and the whole answer.
        on_drop: Called when this side ends the connection.
        others: The connections among which it has to find a place; None if any number may be open.
    """

    __slots__ = (
        "_deadline",
        "_inner",
        "_on_drop",
        "_on_timeout",
        "_others",
        "_request",
        "_timeout_seconds",
        "_transport",
    )

    def __init__(
        self, inner: asyncio.Protocol, timeout_seconds: float, on_drop: OnDrop, others: OpenConnections | None = None
    ) -> None:
        self._inner = inner
        self._timeout_seconds = timeout_seconds
        self._on_drop = on_drop
        self._others = others
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._on_timeout = Drop.NO_REQUEST
        self._request: web.Request | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Sets the first deadline: the connection is open, and the TLS handshake is done if there is one."""
        # No isinstance: uvloop's transports are not of asyncio's classes.
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        if self._others is not None and not self._others.add(self, str(peer[0]) if peer else ""):
            self._transport.abort()
            return
        # Ends a connection whose peer acknowledges nothing. Keepalive does not: the kernel sends no probes while
        # unacknowledged data, such as heartbeats, is on its way.
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MILLISECONDS)
        self._arm(Drop.NO_REQUEST)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Passes on the bytes of one request. No honest client sends a second request before the answer."""
        if self._request is not None and self._request.content.is_eof():
            self._drop(Drop.TOO_MANY)
        else:
            if self._on_timeout is Drop.IDLE:
                # A busy loop may read a request at the very end of an idle time, and begin it after that.
                self._arm(Drop.NO_REQUEST)
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Handles that the peer has closed its side."""
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handles the end of the connection."""
        self.disarm()
        if self._others is not None:
            self._others.remove(self)
        self._transport = self._request = None
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Handles that the peer reads too slowly."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Handles that the peer has caught up."""
        self._inner.resume_writing()

    def request_started(self, request: web.Request) -> None:
        """Sets the deadline for the rest: a complete head has been received."""
        self._request = request
        self._arm(Drop.TOO_SLOW)

    def request_ended(self) -> None:
        """Sets the deadline for the next request: the handler has answered."""
        self._request = None
        if self._transport is not None:
            self._arm(Drop.IDLE)

    def _arm(self, on_timeout: Drop) -> None:
        self.disarm()
        self._on_timeout = on_timeout
        self._deadline = asyncio.get_running_loop().call_later(self._timeout_seconds, self._drop, on_timeout)

    def disarm(self) -> None:
        """Removes the deadline."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    @property
    def is_in_use(self) -> bool:
        """Whether it carries a stream: only then it has no deadline."""
        return self._deadline is None

    def give_way(self) -> None:
        """Ends the connection, because a newer one takes its place."""
        self.disarm()
        if self._transport is not None:
            self._transport.abort()

    def _drop(self, why: Drop) -> None:
        self.disarm()
        if self._transport is not None:
            self._on_drop(why)
            self._transport.abort()


class GuardedSite(web.BaseSite):
    """A listening socket with a `GuardedConnection` for each peer. The application needs the `timed` middleware.

    Args:
        runner: Set up already.
        address: Port 0 picks a free port.
        context: Has the server's certificate; None serves without TLS.
        timeout_seconds: For the TLS handshake, and then as for a `GuardedConnection`.
        on_drop: See `GuardedConnection`.
        connections: Bounds how many are open at once. None: as many as there are descriptors.
    """

    def __init__(  # noqa: PLR0913 - the last one has a default
        self,
        runner: web.AppRunner,
        address: Address,
        context: ssl.SSLContext | None,
        *,
        timeout_seconds: float,
        on_drop: OnDrop,
        connections: OpenConnections | None = None,
    ) -> None:
        super().__init__(runner, ssl_context=context, backlog=_BACKLOG)
        self._timeout_seconds = timeout_seconds
        self._address = address
        self._on_drop = on_drop
        self._connections = connections

    @property
    def name(self) -> str:
        """Returns the address, for people."""
        return str(self._address)

    async def start(self) -> None:
        """Starts to listen.

        Raises:
            OSError: The address is not available.
        """
        hide_versions()
        await super().start()
        tls = None
        if self._ssl_context is not None:
            tls = TlsOfPeers(
                context=self._ssl_context, handshake_seconds=self._timeout_seconds, close_seconds=_CLOSE_SECONDS
            )
        listener = Listener(self._connection, tls)
        # aiohttp closes it, and asks it for its addresses.
        self._server = cast("asyncio.AbstractServer", listener)
        await listener.listen(self._address, self._backlog)

    def _connection(self) -> GuardedConnection:
        server = self._runner.server
        if server is None:
            raise ConnectionAbortedError("the server has stopped")
        return GuardedConnection(server(), self._timeout_seconds, self._on_drop, self._connections)


@web.middleware
async def timed(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Tells the connection when a request starts and ends. It must be the outermost middleware."""
    connection = _of(request)
    if connection is None:
        return await handler(request)
    connection.request_started(request)
    try:
        return await handler(request)
    finally:
        connection.request_ended()


def mark_streaming(request: web.Request) -> None:
    """Removes the deadline of this answer, because it is a stream, whose sender handles peers that do not read."""
    connection = _of(request)
    if connection is not None:
        connection.disarm()


def _of(request: web.Request) -> GuardedConnection | None:
    protocol = None if request.transport is None else request.transport.get_protocol()
    return protocol if isinstance(protocol, GuardedConnection) else None


def hide_versions() -> None:
    """Sets the `Server` header of every answer to this product's name, without versions.

    aiohttp names itself and Python, with their versions, and has no setting for it. A hook of the application does not
    run for a connection that is refused before there is a request.
    """
    web_response.SERVER_SOFTWARE = _SERVER_NAME  # type: ignore[attr-defined]  # Not part of aiohttp's public interface.


class Probes:
    """Answers the probes `/livez` and `/readyz` with 200 or 503, and the detail as JSON.

    Args:
        live: Called for every `/livez`. An unhealthy answer asks for a restart, so it must not depend on anything
            outside the process.
        ready: Called for every `/readyz`.
        address: Port 0 picks a free port.
    """

    def __init__(
        self,
        live: Callable[[], Health],
        ready: Callable[[], Health],
        address: Address = Address("127.0.0.1", 0),  # noqa: B008 - frozen
    ) -> None:
        self._probes = {"/livez": live, "/readyz": ready}
        self._address = address

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Address]:
        """Serves while the context lasts; yields the address.

        Raises:
            OSError: The address is not available.
        """
        app = web.Application(middlewares=[timed])
        for path in self._probes:
            app.router.add_get(path, self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = GuardedSite(runner, self._address, None, timeout_seconds=_PROBE_SECONDS, on_drop=ignore_drop)
            await site.start()
            yield Address(*runner.addresses[0][:2])
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        health = self._probes[request.path]()
        return web.Response(
            body=msgspec.json.encode({"ok": health.ok, "detail": health.detail}),
            status=200 if health.ok else 503,
            content_type="application/json",
        )
