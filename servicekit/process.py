"""Tunes a process that serves thousands of connections: its memory, its file descriptors, and gRPC's event thread."""

import asyncio
import ctypes
import os
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc.aio

_CHECK_SECONDS = 10.0
_WORTHWHILE_BYTES = 32 * 1024 * 1024
"""Trimming holds the allocator's lock for about 0.2 ms per MiB, so it has to be worthwhile."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

_ALL_BYTES = 65536
"""More than gRPC's socket pair holds."""


def resident_bytes() -> int:
    """Returns the process's resident set size."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES


def trim() -> None:
    """Returns every free page to the system; does nothing where the C library has no such function.

    glibc's malloc returns only free memory at the end of its heap. A TLS connection takes about 300 KB there, 256 of
    them for a buffer that uvloop makes before the first byte. Thousands of failed connections leave a heap of free
    pieces with something small at its end, and the next thousands touch other pages of it.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


@dataclass(slots=True)
class Trimmer:
    """Trims whenever the resident set has grown by a worthwhile amount since the last time.

    Attributes:
        resident: Returns the resident set size.
        trim: Returns free pages to the system; runs in a thread.
    """

    resident: Callable[[], int] = resident_bytes
    trim: Callable[[], None] = trim
    _min: int = field(init=False)

    def __post_init__(self) -> None:
        self._min = self.resident()

    async def run(self) -> None:
        """Root task: checks every ten seconds."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            await self.once()

    async def once(self) -> None:
        """Checks once. A thread trims, so that the event loop goes on unless it needs memory."""
        if self.resident() - self._min > _WORTHWHILE_BYTES:
            await asyncio.to_thread(self.trim)
            self._min = self.resident()
        self._min = min(self._min, self.resident())


def raise_descriptor_limit() -> int:
    """Raises the limit on file descriptors as far as this process may, and returns it.

    Each connection takes one, and the default is for programs with a few.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


class _DrainedSocket(socket.socket):
    """A socket from which each read drains everything."""

    def recv(self, bufsize: int, flags: int = 0, /) -> bytes:
        """Reads everything; the caller only wants to know that there was something."""
        return super().recv(max(bufsize, _ALL_BYTES), flags)


def init_grpc() -> None:
    """Starts gRPC's event thread so that it waits for one turn at most. To be called before any other use of gRPC.

    For each event, gRPC writes one byte into a socket pair that holds about 300, and blocks while the pair is full. In
    each turn of the loop `grpc.aio` handles all pending events but reads only one byte. So a loop with long turns, as
    with a thousand handshakes in each, falls behind by all bytes but one at every turn, until gRPC gets through one
    event a turn: heartbeats of 5,000 agents then waited for more than ten seconds.
    """
    # gRPC has no setting for its socket pair.
    pair = socket.socketpair

    def drained(*arguments: int) -> tuple[socket.socket, socket.socket]:
        read, write = pair(*arguments)
        return _DrainedSocket(read.family, read.type, read.proto, read.detach()), write

    socket.socketpair = drained  # type: ignore[assignment]  # The stubs know overloads only.
    try:
        grpc.aio.init_grpc_aio()  # type: ignore[attr-defined]  # The stubs leave it out; it is in `__all__`.
    finally:
        socket.socketpair = pair
