"""Memory that is free within the process goes back to the system.

glibc's malloc returns only what is free at the end of its heap. A TLS connection takes some 300 KB there, 256 of them a
buffer that uvloop makes before the first byte; thousands that came to nothing leave a heap of free pieces with
something small at its end, and the next thousands touch other pages of it.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_LOOK_SECONDS = 10.0
_WORTHWHILE_BYTES = 32 * 1024 * 1024
"""Giving back takes the allocator's lock for some 0.2 ms per MiB, so it is not done for nothing."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """What this process has in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES


def trim() -> None:
    """Gives back every page that is free; does nothing where the C library cannot."""
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if give_back is not None:
        give_back(0)


@dataclass(slots=True)
class Trimmer:
    """Gives memory back whenever there is so much more in use than after the last time that it may be worthwhile."""

    resident: Callable[[], int] = resident_bytes
    give_back: Callable[[], None] = trim
    _least: int = field(init=False)

    def __post_init__(self) -> None:
        self._least = self.resident()

    async def run(self) -> None:
        """Root task."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.once()

    async def once(self) -> None:
        """Looks once; in a thread, so that the loop goes on wherever it needs no memory."""
        if self.resident() - self._least > _WORTHWHILE_BYTES:
            await asyncio.to_thread(self.give_back)
            self._least = self.resident()
        self._least = min(self._least, self.resident())
