"""Horovod in environments of its own, outside the checkout, each made once for each set of requirements.

Run as a script: prints where they are, and makes what is missing.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.frameworks import frameworks_installation
from tests.testkit.caches import cache

_REQUIREMENTS = Path(__file__).parents[2] / "requirements"
# What horovod's setup.py imports has to be there before it: its build cannot be isolated, as that would not be locked.
_BUILD, _LOCK = _REQUIREMENTS / "horovod-build.txt", _REQUIREMENTS / "horovod.txt"
_COMPILER = Path(__file__).parent / "compiler" / "c++"
_VERSION = "0.28.1"
# 7 s on an idle machine with a near registry.
_SECONDS = 300.0
# 5 min on two idle cores.
_COMPILE_SECONDS = 2400.0

_DRIVER = {"HOROVOD_SKIP_COMPILE": "1", "HOROVOD_WITHOUT_MPI": "1"}
_CORE = {
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITH_PYTORCH": "1",
    "MAKEFLAGS": "-j2",
    # Gloo's own CMakeLists ask for a version that CMake 4 has forgotten.
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
}


class HorovodNotInstallable(Exception):  # noqa: N818  # It names what is so.
    """Horovod cannot be installed here; the message has pip's last words."""


def installed() -> Path:
    """Returns the environment that has the driver without a compiled core, and makes it if it is missing.

    Raises:
        HorovodNotInstallable: It is missing and cannot be made.
    """
    return _cached(_home("", _BUILD.read_bytes(), _LOCK.read_bytes()), _make)


def compiled() -> Path:
    """The environment that has Horovod compiled with gloo against torch; made first where it is missing.

    It is tied to the torch of the environment of training frameworks, whose packages it sees.

    Raises:
        HorovodNotInstallable: It is missing and cannot be made.
    """
    try:
        frameworks = frameworks_installation.installed()
    except frameworks_installation.FrameworksNotInstallable as error:
        raise HorovodNotInstallable(f"torch: {error}") from error
    wanted = (_BUILD.read_bytes(), _LOCK.read_bytes(), _COMPILER.read_bytes(), str(frameworks).encode())
    return _cached(_home("torch-", *wanted), lambda venv: _compile(venv, frameworks))


def site_packages(home: Path) -> Path:
    return home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def _home(kind: str, *wanted: bytes) -> Path:
    key = hashlib.sha256(b"".join(wanted) + sys.version.encode()).hexdigest()[:12]
    return cache(f"horovod-{_VERSION}-{kind}{key}")


def _cached(home: Path, make: Callable[[Path], None]) -> Path:
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        # Made beside its final place and then renamed: whoever finds it finds all of it, and of two makers one wins.
        with tempfile.TemporaryDirectory(dir=home.parent, prefix=".making-") as making:
            make(Path(making) / "venv")
            _rename(Path(making) / "venv", home)
    return home


def _make(venv: Path) -> None:
    _run([sys.executable, "-m", "venv", str(venv)], _DRIVER, _SECONDS)
    for lock in (_BUILD, _LOCK):
        _install(venv, lock, _DRIVER, _SECONDS)


def _compile(venv: Path, frameworks: Path) -> None:
    _run([sys.executable, "-m", "venv", str(venv)], _CORE, _SECONDS)
    # A copy, as a checkout may change in the minutes that this takes.
    compiler = shutil.copy(_COMPILER, venv / "bin" / "horovod-c++")
    _install(venv, _BUILD, _CORE, _SECONDS)
    # After these: pip would otherwise look at what is there already.
    others = frameworks_installation.site_packages(frameworks)
    (site_packages(venv) / "frameworks.pth").write_text(f"{others}\n", encoding="utf-8")
    _install(venv, _LOCK, {**_CORE, "CXX": str(compiler)}, _COMPILE_SECONDS)


def _install(venv: Path, lock: Path, variables: Mapping[str, str], seconds: float) -> None:
    # Through the module: scripts of the environment name the directory it was made in, not the one it ends up in.
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # No wheel is kept, as pip would take the one without a core for the other.
    _run([*pip, "--no-cache-dir", "--require-hashes", "--no-build-isolation", "-r", str(lock)], variables, seconds)


def _run(command: list[str], variables: Mapping[str, str], seconds: float) -> None:
    environment = {**os.environ, **variables}
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds, env=environment)
    except subprocess.CalledProcessError as error:
        raise HorovodNotInstallable(" ".join(error.stderr.split())[-300:]) from error
    except subprocess.TimeoutExpired as error:
        raise HorovodNotInstallable(f"not installed after {seconds:g} s") from error


def _rename(made: Path, home: Path) -> None:
    try:
        made.rename(home)
    except OSError:
        if not home.exists():
            raise


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{installed()}\n{compiled()}\n")
    except HorovodNotInstallable as reason:
        sys.exit(f"Horovod cannot be installed: {reason}")
