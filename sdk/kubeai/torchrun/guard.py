"""Ends the workers of an elastic agent that was killed and so could not end them itself.

    python -I -S guard.py DIRECTORY

It is a process of its own. It waits until its standard input ends. If the agent has not dismissed it before, it kills
every process that has inherited the directory of the agent's workers, and removes the directory. Without it, workers
go on in a round that is over, and keep their GPUs.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

_VARIABLE = "KUBEAI_RENDEZVOUS_DIR"
_DISMISSED = b"."
_ATTEMPTS, _BETWEEN_SECONDS = 100, 0.1


def start(directory: Path) -> None:
    """Start the guard of the agent that is this process. It is dismissed when the interpreter exits."""
    # A session of its own, as whoever ends the agent may signal its process group.
    process = subprocess.Popen(  # noqa: S603 - our own script
        [sys.executable, "-I", "-S", __file__, str(directory)], stdin=subprocess.PIPE, start_new_session=True
    )

    def dismiss() -> None:
        # The workers have ended or will be ended by the agent.
        with contextlib.suppress(OSError, ValueError):
            process.communicate(_DISMISSED)

    atexit.register(dismiss)


def _orphans(directory: str) -> list[int]:
    """Return the processes that have inherited the variable with this directory from the agent."""
    wanted = os.fsencode(f"{_VARIABLE}={directory}")
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def _main() -> None:
    directory = sys.argv[1]
    if sys.stdin.buffer.read() != _DISMISSED:
        for _ in range(_ATTEMPTS):  # one that is killed while it forks leaves a child behind, which the next look finds
            orphans = _orphans(directory)
            for orphan in orphans:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(orphan, signal.SIGKILL)
            if not orphans:
                break
            time.sleep(_BETWEEN_SECONDS)
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    _main()
