"""Installs the Debian packages that tests with containers need, or says why it cannot."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.testkit.caches import alone

_SECONDS = 300.0
_LOCK_SECONDS = 120
"""Another user of apt-get, as a machine that has just started, may hold its lock for that long."""
_LOCK = Path(tempfile.gettempdir()) / "job-supervisor-packages"
"""Suites that run side by side find the same package missing; apt-get refuses all but the first."""


class PackageUnavailable(Exception):  # noqa: N818  # It names what is so.
    """This machine cannot run the tests; the message says why."""


def require(packages: Mapping[str, str]) -> None:
    """Ensure that each program is installed, from the Debian package named with it.

    Raises:
        PackageUnavailable: One is missing and cannot be installed, or nobody here is root.
    """
    if os.geteuid() != 0:
        raise PackageUnavailable("containers are made by root here, and this is somebody else")
    if not _missing(packages):
        return
    with alone(_LOCK):
        _install_missing(packages)


def _missing(packages: Mapping[str, str]) -> dict[str, str]:
    return {program: package for program, package in packages.items() if not _found(program)}


def _install_missing(packages: Mapping[str, str]) -> None:
    missing = _missing(packages)
    if not missing:
        return
    wanted = " ".join(sorted(missing))
    if not shutil.which("apt-get"):
        raise PackageUnavailable(f"there is no {wanted}, and no apt-get to install it with")
    refused = _install(sorted(set(missing.values())))
    if refused:
        raise PackageUnavailable(f"there is no {wanted}, and apt-get cannot install it: {refused}")


def _found(program: str) -> bool:
    # Not all have the administrator's directories on their PATH.
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/lib/cni") is not None


def _install(packages: list[str]) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        said = subprocess.run(
            ["apt-get", "--quiet", "--option", f"DPkg::Lock::Timeout={_LOCK_SECONDS}", *arguments],  # noqa: S607  # Debian's.
            check=False,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env=environment,
        )
        if said.returncode:
            return " ".join(said.stderr.split())[-300:]
    return ""
