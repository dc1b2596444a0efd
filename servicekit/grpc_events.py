"""gRPC's events on their way to asyncio's loop.

For each event gRPC's own thread writes one byte into a socket pair that holds some 300, and waits where that is full.
In each turn of the loop `grpc.aio` handles all events that there are, but takes one byte. So a loop whose turns are
long, as with a thousand handshakes in each, falls behind by all bytes but one at every turn, until gRPC is held to one
event a turn: heartbeats of 5,000 agents then waited for more than ten seconds.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import grpc.aio

_MORE_THAN_IT_HOLDS = 65536


class _Drained(socket.socket):
    """A socket from which everything is taken at once, however little is asked for."""

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """All that is there; who asks wants to know only that there is something."""
        return super().recv(max(bufsize, _MORE_THAN_IT_HOLDS), flags)


def init_grpc() -> None:
    """Starts gRPC's event thread so that it waits for one turn at most; to be called before any other use of gRPC."""
    with _drained_pairs():
        grpc.aio.init_grpc_aio()  # type: ignore[attr-defined]  # The stubs leave it out; it is in `__all__`.


@contextmanager
def _drained_pairs() -> Iterator[None]:
    # Where gRPC makes its pair there is nothing to be set.
    pair = socket.socketpair

    def drained(*arguments: int) -> tuple[socket.socket, socket.socket]:
        read, write = pair(*arguments)
        return _Drained(read.family, read.type, read.proto, read.detach()), write

    socket.socketpair = drained  # type: ignore[assignment]  # The stubs know overloads only.
    try:
        yield
    finally:
        socket.socketpair = pair
