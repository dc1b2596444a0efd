"""Returns the process's free memory to the system.

glibc's malloc returns only free memory at the end of its heap. A TLS connection takes some 300 KB there, 256 of them
for a buffer that uvloop makes before the first byte. Thousands of failed connections leave a heap of free pieces with
something small at its end, and the next thousands touch other pages of it.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

_CHECK_SECONDS = 10.0
_WORTHWHILE_BYTES = 32 * 1024 * 1024
"""Trimming holds the allocator's lock for some 0.2 ms per MiB, so it has to be worthwhile."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Returns the process's resident set size."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * _PAGE_BYTES


def trim() -> None:
    """Returns every free page to the system; does nothing where the C library has no such function."""
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
        """Root task."""
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            await self.once()

    async def once(self) -> None:
        """Checks once. It trims in a thread, so that the loop goes on as long as it needs no memory."""
        if self.resident() - self._min > _WORTHWHILE_BYTES:
            await asyncio.to_thread(self.trim)
            self._min = self.resident()
        self._min = min(self._min, self.resident())
