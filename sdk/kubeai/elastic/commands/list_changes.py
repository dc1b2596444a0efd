"""The pace of changes of the host list: hosts join only some time after others have left.

After hosts have left, Horovod's other workers go on without exchanging their states, and a new worker waits for that
exchange. So a host that joins before they have formed their new ring hangs the job (Horovod issue 3494).
"""

from __future__ import annotations

# pathlib would make the start of a command that runs every second a third slower.
# ruff: noqa: PTH116, PTH118, PTH123
import os
import time
from typing import TYPE_CHECKING

from . import hosts

if TYPE_CHECKING:
    from typing import Sequence

# The names printed last, and a file whose time is that of the last leave.
_PRINTED, _LEFT = "hosts.printed", "hosts.left"


def paced(directory: str, lines: Sequence[str], delay: float) -> list[str]:
    """Return the lines to print now: without new hosts while hosts leave, and for ``delay`` seconds after that.

    The first list of a run is returned as it is, and so is every list while the directory cannot be written.

    Raises:
        OSError: The list cannot be remembered. Nothing was held back.
    """
    printed = _printed(directory)
    present = [hosts.name_of(line) for line in lines]
    if printed is None:
        _remember(directory, present)
        return list(lines)
    leaves = not printed.issubset(present)
    if leaves:
        _write(directory, _LEFT, "")
    if delay and (leaves or _seconds_since_leave(directory) < delay):
        lines = [line for line in lines if hosts.name_of(line) in printed]
        present = [hosts.name_of(line) for line in lines]
    if printed != set(present):
        _remember(directory, present)
    return list(lines)


def _printed(directory: str) -> set[str] | None:
    try:
        return set(hosts.read_text(os.path.join(directory, _PRINTED)).split())
    except OSError:
        return None


def _seconds_since_leave(directory: str) -> float:
    try:
        age = time.time() - os.stat(os.path.join(directory, _LEFT)).st_mtime
    except OSError:
        return float("inf")
    # The clock was set back: nobody knows, and waiting could take for ever.
    return age if age >= 0 else float("inf")


def _remember(directory: str, names: Sequence[str]) -> None:
    _write(directory, _PRINTED, "".join(f"{name}\n" for name in names))


def _write(directory: str, name: str, text: str) -> None:
    with open(os.path.join(directory, name), "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
