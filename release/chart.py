"""The charts' packages. `helm package` writes the present time into them."""

import gzip
import io
from pathlib import Path

from release import archive
from release.checkout import Checkout

NAME = "elastic-job-supervisor"
HUB_NAME = "job-supervisor-hub"


def package(checkout: Checkout, version: str, directory: Path, name: str = NAME) -> Path:
    """Writes the package of the chart with that name and returns its path."""
    path, folder = directory / f"{name}-{version}.tgz", f"charts/{name}"
    # Helm expects Chart.yaml first.
    files = sorted(checkout.files(folder), key=lambda file: (file.name != "Chart.yaml", file))
    plain = io.BytesIO()
    archive.write(plain, {f"{name}/{file.relative_to(checkout.root / folder)}": file for file in files}, checkout.epoch)
    path.write_bytes(gzip.compress(plain.getvalue(), mtime=checkout.epoch))
    return path
