"""Archives whose bytes depend on nothing but their files and a time."""

import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO


def write(out: IO[bytes], files: Mapping[str, Path], epoch: int) -> None:
    """Writes a tar archive of these files, in their order."""
    # Helm reads archives of this form only.
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, file in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = file.stat().st_size, epoch, 0o644
            with file.open("rb") as content:
                tar.addfile(entry, content)
