"""The chart's package. `helm package` writes the present time into it."""

import gzip
import io
import tarfile
from pathlib import Path

from release.checkout import Checkout

NAME = "elastic-job-supervisor"
FOLDER = f"charts/{NAME}"


def package(checkout: Checkout, version: str, directory: Path) -> Path:
    """Writes the package and returns its path."""
    path = directory / f"{NAME}-{version}.tgz"
    archive = io.BytesIO()
    # Helm reads archives of this form only.
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for file in sorted(checkout.files(FOLDER), key=lambda file: (file.name != "Chart.yaml", file)):
            _add(tar, file, f"{NAME}/{file.relative_to(checkout.root / FOLDER)}", checkout.epoch)
    path.write_bytes(gzip.compress(archive.getvalue(), mtime=checkout.epoch))
    return path


def _add(tar: tarfile.TarFile, file: Path, name: str, epoch: int) -> None:
    content = file.read_bytes()
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(content), epoch, 0o644
    tar.addfile(entry, io.BytesIO(content))
