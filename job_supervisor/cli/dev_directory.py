"""The data directory of `elastic-job-supervisor dev`: where it is, and whether a supervisor serves from it."""

import fcntl
from collections.abc import Mapping
from pathlib import Path

LOCK_FILE = "dev.lock"
"""`dev` holds a lock on this file while it runs. The kernel releases it, however the process ends."""


def default_directory(environ: Mapping[str, str]) -> Path:
    """The directory where `dev` puts its files unless it is told otherwise."""
    state = environ.get("XDG_STATE_HOME") or f"{environ.get('HOME') or '~'}/.local/state"
    return Path(state).expanduser() / "elastic-job-supervisor" / "dev"


def is_running(directory: Path) -> bool:
    """Whether a `dev` uses the directory now."""
    try:
        with (directory / LOCK_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # There is no such file, or it is another user's.
        return False
    return False
