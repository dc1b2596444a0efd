"""Writes files atomically, readable only by their owner."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def draft_beside(path: Path) -> Iterator[Path]:
    """Makes an empty file next to `path` that only its owner may read, to be linked or moved to `path` when finished.

    At the end of the context it is removed, unless it was moved.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner may read; replaces an older one.

    Raises:
        OSError: The file cannot be written, or the path is not a file.
    """
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not a file")
    with draft_beside(path.resolve()) as file:
        file.write_text(text, encoding="utf-8")
        file.replace(path.resolve())
