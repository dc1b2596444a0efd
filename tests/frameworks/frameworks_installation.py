"""Training frameworks in environments of their own, outside the checkout, each made once for its requirements.

Run as a module: prints where they are, made where they are missing. Arguments are their names [frameworks].
"""

import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.frameworks import frameworks_stand_in
from tests.testkit.caches import cache

_REQUIREMENTS = Path(__file__).parents[2] / "requirements"
# 30 s on an idle machine with a near registry, for 0.6 GB.
_SECONDS = 900.0


class FrameworksNotInstallable(Exception):  # noqa: N818  # It names what is so.
    """The frameworks cannot be installed here; the message says why."""


@dataclass(frozen=True, slots=True)
class FrameworksEnvironment:
    """Says which packages are installed together.

    Attributes:
        name: Its own.
        locks: Files of locked requirements, installed one after the other.
        has_torch: Whether torch is among them.
        base: The environment whose packages it has besides its own.
    """

    name: str
    locks: tuple[str, ...]
    has_torch: bool = True
    base: "FrameworksEnvironment | None" = None

    def paths(self) -> list[Path]:
        """The files that decide what it has."""
        below = self.base.paths() if self.base is not None else []
        return [*below, *(_REQUIREMENTS / lock for lock in self.locks)]


# DeepSpeed is built from source. Its build cannot be isolated, as that would not be locked, so what its setup.py
# imports has to be there before it.
FRAMEWORKS = FrameworksEnvironment("frameworks", ("frameworks-build.txt", "frameworks.txt"))
OLDEST = FrameworksEnvironment("oldest", ("frameworks-build.txt", "frameworks-oldest.txt"))
OLDEST_FSDP2 = FrameworksEnvironment("fsdp2", ("fsdp2-oldest.txt",))
OLDER_TORCH = FrameworksEnvironment("torchrun", ("torchrun.txt",))
JAX = FrameworksEnvironment("jax", ("jax.txt",), has_torch=False)
OLDEST_JAX = FrameworksEnvironment("jax-oldest", ("jax-oldest.txt",), has_torch=False)
TENSORFLOW = FrameworksEnvironment("tensorflow", ("tensorflow.txt",), has_torch=False)
OLDEST_TENSORFLOW = FrameworksEnvironment("tensorflow-oldest", ("tensorflow-oldest.txt",), has_torch=False)
MEGATRON = FrameworksEnvironment("megatron", ("megatron.txt",), has_torch=False, base=FRAMEWORKS)
TORCHTITAN = FrameworksEnvironment("torchtitan", ("torchtitan.txt",), has_torch=False, base=FRAMEWORKS)
TRL = FrameworksEnvironment("trl", ("trl.txt",), has_torch=False, base=FRAMEWORKS)
OLDEST_TRL = FrameworksEnvironment("trl-oldest", ("trl-oldest.txt",), has_torch=False, base=OLDEST)
RAY = FrameworksEnvironment("ray", ("ray.txt",))

CHOSEN = {one.name: one for one in (FRAMEWORKS, OLDEST)}[os.environ.get("FRAMEWORKS_ENVIRONMENT", FRAMEWORKS.name)]
"""The one whose frameworks are tested."""

CHOSEN_FSDP2 = OLDEST_FSDP2 if CHOSEN is OLDEST else CHOSEN
"""The one whose FSDP2 is tested."""

_OLDEST_OF = {JAX: OLDEST_JAX, TENSORFLOW: OLDEST_TENSORFLOW, TRL: OLDEST_TRL}
"""By the newest one, the oldest of the frameworks that have an environment of their own."""


def chosen(newest: FrameworksEnvironment) -> FrameworksEnvironment:
    """Returns the one that is tested: this one, or its oldest if the oldest are and it has one."""
    return _OLDEST_OF.get(newest, newest) if CHOSEN is OLDEST else newest


def installed(environment: FrameworksEnvironment = FRAMEWORKS) -> Path:
    """Returns the environment's directory, and makes the environment if it is missing.

    Raises:
        FrameworksNotInstallable: It is missing and cannot be made.
    """
    home = _home(environment)
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        # Made beside its final place and then renamed: whoever finds it finds all of it, and of two makers one wins.
        with tempfile.TemporaryDirectory(dir=home.parent, prefix=".making-") as making:
            _make(environment, Path(making) / "venv")
            _rename(Path(making) / "venv", home)
    return home


def site_packages(home: Path) -> Path:
    return home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def _home(environment: FrameworksEnvironment) -> Path:
    files = (*environment.paths(), Path(frameworks_stand_in.__file__))
    wanted = b"".join(file.read_bytes() for file in files) + sys.version.encode()
    return cache(f"{environment.name}-{hashlib.sha256(wanted).hexdigest()[:12]}")


def _make(environment: FrameworksEnvironment, venv: Path) -> None:
    _run([sys.executable, "-m", "venv", str(venv)])
    if environment.base is not None:
        below = site_packages(installed(environment.base))
        (site_packages(venv) / f"{environment.base.name}.pth").write_text(f"{below}\n", encoding="utf-8")
    for lock in environment.locks:
        # Through the module: scripts of the environment name the directory it was made in, not the one it ends up in.
        pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        # A copy in pip's cache would be half a gigabyte that nobody needs again. Python compiles what is imported.
        _run(
            [
                *pip,
                "--require-hashes",
                "--no-deps",
                "--no-build-isolation",
                "--no-cache-dir",
                "--no-compile",
                "-r",
                str(_REQUIREMENTS / lock),
            ]
        )
    if not environment.has_torch:
        return
    try:
        frameworks_stand_in.make(site_packages(venv))
    except frameworks_stand_in.CannotMake as error:
        raise FrameworksNotInstallable(str(error)) from error


def _run(command: list[str]) -> None:
    environment = {**os.environ, "DS_BUILD_OPS": "0"}
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS, env=environment)
    except subprocess.CalledProcessError as error:
        raise FrameworksNotInstallable(" ".join(error.stderr.split())[-300:]) from error
    except subprocess.TimeoutExpired as error:
        raise FrameworksNotInstallable(f"not installed after {_SECONDS:g} s") from error


def _rename(made: Path, home: Path) -> None:
    try:
        made.rename(home)
    except OSError:
        if not home.exists():
            raise


if __name__ == "__main__":
    torches = (FRAMEWORKS, OLDEST, OLDEST_FSDP2, OLDER_TORCH, MEGATRON, TORCHTITAN, TRL, OLDEST_TRL, RAY)
    for wanted in (*torches, JAX, OLDEST_JAX, TENSORFLOW, OLDEST_TENSORFLOW):
        try:
            if wanted.name in (sys.argv[1:] or [FRAMEWORKS.name]):
                sys.stdout.write(f"{installed(wanted)}\n")
        except FrameworksNotInstallable as reason:
            sys.exit(f"The training frameworks cannot be installed: {reason}")
