"""Wheels, sdists and their bills of materials, by tools of the virtual environment."""

import os
import subprocess
import sys
from pathlib import Path

from release.checkout import Checkout
from release.errors import NoReleaseError

_LOCKED = {"server": "elastic-job-supervisor", "agent": "elastic-node-agent"}
"""The lock file of each service; the SDK has no dependencies."""


def build(checkout: Checkout, directory: Path) -> list[Path]:
    """Writes wheel and sdist of the services and of the SDK."""
    for project in (checkout.root, checkout.root / "sdk"):
        _run(checkout, project, sys.executable, "-m", "hatchling", "build", "-d", str(directory))
    return sorted([*directory.glob("*.whl"), *directory.glob("*.tar.gz")])


def bills(checkout: Checkout, version: str, directory: Path) -> list[Path]:
    """Writes the CycloneDX document of each service's locked packages."""
    return [_bill(checkout, lock, directory / f"{name}-{version}.cdx.json") for lock, name in _LOCKED.items()]


def _bill(checkout: Checkout, lock: str, path: Path) -> Path:
    tool = str(Path(sys.executable).with_name("cyclonedx-py"))
    options = ["--pyproject", "pyproject.toml", "--mc-type", "application", "--output-reproducible", "-o", str(path)]
    _run(checkout, checkout.root, tool, "requirements", *options, f"requirements/{lock}.txt")
    return path


def _run(checkout: Checkout, folder: Path, *command: str) -> None:
    """Runs a command whose output must not depend on the time and on this user's umask."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(checkout.epoch), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(  # noqa: S603  # Ours.
        command, check=False, capture_output=True, text=True, cwd=folder, env=environment, umask=0o022
    )
    if done.returncode:
        raise NoReleaseError(f"{Path(command[0]).name}: {' '.join(done.stderr.split())[-600:]}")
