"""Connections over TLS that are closed when their session is closed."""

import contextlib
import socket
import ssl
import weakref

import aiohttp

from tests.testkit.waiting import until

_IDLE_SECONDS = 5.0
"""Half as long as the supervisor keeps such a connection."""


class TlsConnector(aiohttp.TCPConnector):
    """A connector that also closes the connections of cancelled requests."""

    def __init__(self, trusted: ssl.SSLContext | None) -> None:
        self._sockets = weakref.WeakSet[socket.socket]()
        # Each peer keeps a stream open: of aiohttp's hundred connections, later peers would wait for one for ever.
        # An idle connection is left before the supervisor does that, which may be when a request is on its way.
        super().__init__(ssl=trusted or True, socket_factory=self._opened, limit=0, keepalive_timeout=_IDLE_SECONDS)

    async def close(self, *, abort_ssl: bool = False) -> None:
        await super().close(abort_ssl=abort_ssl)
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        await until(lambda: all(each.fileno() < 0 for each in self._sockets), "every connection closed")

    def _opened(self, address: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, *_ = address
        opened = socket.socket(family, kind, protocol)
        self._sockets.add(opened)
        return opened
