"""Compares jobs in a process of its own: reads them from standard input, and writes the comparison, both as JSON.

A simulation is pure Python of up to a minute. In the process of a supervisor it would compete with the event loop for
the interpreter.
"""

import resource
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from supervisor.goodput.comparison import OUT_OF_MEMORY, RecordedJobs, compare

CPU_SECONDS = 120
"""Of processor time; the largest simulations take 45 s. It ends a process that its supervisor has left behind."""

MEMORY_BYTES = 512 * 1024 * 1024
"""Of address space. The largest input takes less than half of it."""


def compared(given: bytes) -> bytes:
    """Returns the comparison of jobs.

    Raises:
        msgspec.MsgspecError: What is given are no jobs.
    """
    return msgspec.json.encode(compare(msgspec.json.decode(given, type=RecordedJobs)))


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    with suppress(OSError):  # Where memory runs out, the kernel is to end this process and not the supervisor.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    try:
        sys.stdout.buffer.write(compared(sys.stdin.buffer.read()))
    except MemoryError:
        sys.exit(OUT_OF_MEMORY)


if __name__ == "__main__":
    main()
