"""Memory is given back when there is enough of it to be worthwhile, and only then."""

import ctypes
import subprocess
import sys
from dataclasses import dataclass, field

import pytest

from servicekit.process import Trimmer

MIB = 1024 * 1024

FREED_BETWEEN_USED = """
import ctypes
from servicekit.process import resident_bytes, trim

malloc, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
malloc.restype, malloc.argtypes, free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
pairs = [(malloc(64 * 1024), malloc(2048)) for _ in range(1024)]
for buffer, _ in pairs:
    ctypes.memset(buffer, 1, 64 * 1024)
for buffer, _ in pairs:
    free(buffer)
before = resident_bytes()
trim()
print(before, resident_bytes())
"""
"""The resident bytes after 64 MiB of buffers were freed between others in use, and after trimming."""


@dataclass(slots=True)
class MeasuredProcess:
    used: int
    free: int = 0
    given_back: list[int] = field(default_factory=list)

    def resident(self) -> int:
        return self.used + self.free

    def give_back(self) -> None:
        self.given_back.append(self.free)
        self.free = 0


async def test_it_is_given_back_once_it_is_worthwhile() -> None:
    """A little is left alone, and what is really in use is not looked for again and again."""
    process = MeasuredProcess(used=80 * MIB)
    trimmer = Trimmer(process.resident, process.give_back)
    process.free = 20 * MIB
    await trimmer.once()
    assert process.given_back == []
    process.free = 200 * MIB
    await trimmer.once()
    assert process.given_back == [200 * MIB]
    process.used = 300 * MIB
    await trimmer.once()
    await trimmer.once()
    assert process.given_back == [200 * MIB, 0]


async def test_what_comes_back_by_itself_counts_as_the_least() -> None:
    process = MeasuredProcess(used=300 * MIB)
    trimmer = Trimmer(process.resident, process.give_back)
    process.used = 100 * MIB
    await trimmer.once()
    process.free = 50 * MIB
    await trimmer.once()
    assert process.given_back == [50 * MIB]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="this C library keeps what it has")
def test_pages_between_those_in_use_are_given_back() -> None:
    """In a process of its own: in a heap with free pieces of earlier tests, the C library may return these itself."""
    ran = subprocess.run([sys.executable, "-c", FREED_BETWEEN_USED], capture_output=True, check=True, timeout=60)
    before, after = map(int, ran.stdout.split())
    assert after < before - 32 * MIB
