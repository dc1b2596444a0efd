"""Lets one process at a time build or install something that all processes of this machine share."""

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Hold the directory, which is made, for the block; wait first while another process holds it, and say so."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / ".lock").open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write("another process builds or installs it: waiting\n")
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
