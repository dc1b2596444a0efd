"""The chart's package. `helm package` writes the present time into it."""

import gzip
import io
from pathlib import Path

from release import archive
from release.checkout import Checkout

NAME = "elastic-job-supervisor"
FOLDER = f"charts/{NAME}"


def package(checkout: Checkout, version: str, directory: Path) -> Path:
    """Writes the package and returns its path."""
    path = directory / f"{NAME}-{version}.tgz"
    # Helm expects Chart.yaml first.
    files = sorted(checkout.files(FOLDER), key=lambda file: (file.name != "Chart.yaml", file))
    plain = io.BytesIO()
    archive.write(plain, {f"{NAME}/{file.relative_to(checkout.root / FOLDER)}": file for file in files}, checkout.epoch)
    path.write_bytes(gzip.compress(plain.getvalue(), mtime=checkout.epoch))
    return path
