"""Keeps gRPC's event thread from waiting for a slow asyncio loop.

For each event gRPC's thread writes one byte into a socket pair that holds some 300, and blocks while it is full. In
each turn of the loop `grpc.aio` handles all pending events but reads only one byte. So a loop with long turns, as with
a thousand handshakes in each, falls behind by all bytes but one at every turn, until gRPC gets through one event a
turn: heartbeats of 5,000 agents then waited for more than ten seconds.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import grpc.aio

_ALL_BYTES = 65536
"""More than the socket pair holds."""


class _Drained(socket.socket):
    """A socket from which each read takes everything."""

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """Reads everything; the caller only wants to know that there was something."""
        return super().recv(max(bufsize, _ALL_BYTES), flags)


def init_grpc() -> None:
    """Starts gRPC's event thread so that it waits for one turn at most. To be called before any other use of gRPC."""
    with _drained_pairs():
        grpc.aio.init_grpc_aio()  # type: ignore[attr-defined]  # The stubs leave it out; it is in `__all__`.


@contextmanager
def _drained_pairs() -> Iterator[None]:
    # gRPC has no setting for its socket pair.
    pair = socket.socketpair

    def drained(*arguments: int) -> tuple[socket.socket, socket.socket]:
        read, write = pair(*arguments)
        return _Drained(read.family, read.type, read.proto, read.detach()), write

    socket.socketpair = drained  # type: ignore[assignment]  # The stubs know overloads only.
    try:
        yield
    finally:
        socket.socketpair = pair
