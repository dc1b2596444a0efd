"""Accepts connections, also when the process has run out of descriptors.

uvloop's own servers rest on one descriptor that libuv keeps in reserve for that moment. When another thread takes it,
the event loop spins on a whole core for as long as a connection waits and none is free. Here they wait in the kernel's
queue.
"""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from servicekit.address import Address

_AT_ONCE = 64  # Then other events have their turn.
_RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOfPeers:
    """How connections are secured.

    Attributes:
        context: Has the server's certificate.
        handshake_seconds: The longest handshake; after it, the connection is dropped.
        close_seconds: For the peer's part in the end of a connection.
    """

    context: ssl.SSLContext
    handshake_seconds: float
    close_seconds: float


@dataclass(eq=False, slots=True)
class Listener:
    """Listening sockets, with a protocol for each connection.

    It has the part of `asyncio.Server` that aiohttp's runners use.

    Attributes:
        protocol: Makes the protocol of a connection.
        tls: None serves without.
        sockets: The sockets that listen.
    """

    protocol: Callable[[], asyncio.Protocol]
    tls: TlsOfPeers | None
    sockets: list[socket.socket] = field(init=False, default_factory=list)
    _waiting: dict[socket.socket, asyncio.TimerHandle] = field(init=False, default_factory=dict)
    _handshakes: set[asyncio.Task[None]] = field(init=False, default_factory=set)

    async def listen(self, address: Address, backlog: int) -> None:
        """Listen on all addresses of a host.

        Args:
            address: Port 0 picks a free one.
            backlog: The most connections that wait in the kernel's queue.

        Raises:
            OSError: The address is not available.
        """
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, kind, protocol, _name, where in dict.fromkeys(found):
                listening = _socket(family, kind, protocol)
                if listening is None:
                    continue
                self.sockets.append(listening)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listening.settimeout(0.0)
                listening.bind(where)
                listening.listen(backlog)
        except OSError as error:
            self.close()
            raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from error
        if not self.sockets:
            raise OSError(errno.EAFNOSUPPORT, f"cannot listen on {address}: {os.strerror(errno.EAFNOSUPPORT)}")
        for listening in self.sockets:
            loop.add_reader(listening, self._accept, listening)

    def close(self) -> None:
        """Accept no further connections. Those that are open stay."""
        loop = asyncio.get_running_loop()
        for listening in self.sockets:
            loop.remove_reader(listening)
            listening.close()
        for timer in self._waiting.values():
            timer.cancel()
        for handshake in self._handshakes:
            handshake.cancel()
        self.sockets.clear()

    def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(_AT_ONCE):
            try:
                connection, _peer = listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:  # No descriptors, or no memory for one.
                loop.call_exception_handler({"message": "connections wait", "exception": error})
                loop.remove_reader(listening)
                self._waiting[listening] = loop.call_later(
                    _RETRY_SECONDS, loop.add_reader, listening, self._accept, listening
                )
                return
            handshake = loop.create_task(self._connect(connection))
            self._handshakes.add(handshake)
            handshake.add_done_callback(partial(self._on_connected, connection))

    def _on_connected(self, connection: socket.socket, handshake: asyncio.Task[None]) -> None:
        self._handshakes.discard(handshake)
        error = None if handshake.cancelled() else handshake.exception()
        if handshake.cancelled() or error is not None:
            connection.close()  # Also where no transport has it yet.
        # A peer that has gone, or whose handshake fails or lasts too long, is no fault of this side.
        if error is not None and not isinstance(error, OSError):
            asyncio.get_running_loop().call_exception_handler({"message": "not connected", "exception": error})

    async def _connect(self, connection: socket.socket) -> None:
        loop, tls = asyncio.get_running_loop(), self.tls
        connection.settimeout(0.0)
        await loop.connect_accepted_socket(
            self.protocol,
            connection,
            ssl=None if tls is None else tls.context,
            ssl_handshake_timeout=None if tls is None else tls.handshake_seconds,
            ssl_shutdown_timeout=None if tls is None else tls.close_seconds,
        )


def _socket(family: int, kind: int, protocol: int) -> socket.socket | None:
    """Returns a socket, None where the kernel has no such addresses, as some have no IPv6."""
    try:
        return socket.socket(family, kind, protocol)
    except OSError as error:
        if error.errno != errno.EAFNOSUPPORT:
            raise
        return None
