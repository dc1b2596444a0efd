"""Files for their owner alone, which others see whole or not at all."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """An empty file next to `path` that only its owner may read, to be linked or moved to `path` once it is finished.

    It is removed at the end of the context, unless it was moved.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    os.close(handle)
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def write_private(path: Path, text: str) -> None:
    """Writes a file that only its owner may read, in the place of an older one.

    Raises:
        OSError: It cannot be written, or is something other than a file.
    """
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not a file")
    with beside(path.resolve()) as file:
        file.write_text(text, encoding="utf-8")
        file.replace(path.resolve())
