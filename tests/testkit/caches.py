"""What tests build or install once for a machine, outside the checkout."""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache(*names: str) -> Path:
    """The path of this name in the tests' cache, all of which may be deleted."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").joinpath("elastic-job-supervisor", *names)


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
