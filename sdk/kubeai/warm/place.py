"""Where a worker finds its template: a socket in a directory that is the user's own."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Mapping

if TYPE_CHECKING:
    from .command_line import PythonCommand

VARIABLE = "KUBEAI_WARM_DIR"
"""Names the directory. An elastic agent sets it, so that its template ends with it."""


_LONGEST_PATH = 90  # of the 107 bytes that the path of a socket may have; names in the directory are short


def directory(environ: Mapping[str, str]) -> Path | None:
    """Return the directory, made if needed.

    None if it is not this user's alone, as others could offer a process there, or if its path is too long for a socket.
    """
    named = environ.get(VARIABLE)
    where = Path(named) if named else Path(tempfile.gettempdir()) / f"kubeai-warm-{os.getuid()}"
    if len(os.fsencode(where)) > _LONGEST_PATH:
        return None
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileExistsError):
            where.mkdir(mode=0o700)
        found = where.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
            return where
    return None


def socket_path(where: Path, executable: str, command: PythonCommand) -> Path:
    """Return the socket of the template of a program. The template compares the program itself once more."""
    return where / f"{zlib.crc32(repr((executable, command.program)).encode(errors='surrogateescape')):08x}.sock"
