"""Outages of a control plane."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.running import ControlPlane


@contextmanager
def frozen(plane: ControlPlane) -> Iterator[None]:
    """Stop all threads of the API server, as a machine that hangs does."""
    pid = plane.pid(BinaryProgram.API_SERVER)
    os.kill(pid, signal.SIGSTOP)
    try:
        while not _stands(pid):
            time.sleep(0.001)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _stands(pid: int) -> bool:
    """Whether all its threads have stopped: on a busy machine one still answers for a while."""
    stats = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)
