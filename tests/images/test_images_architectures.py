"""The images can be built for every architecture, as far as another architecture can tell."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.images.images_building import CHECKOUT

# Of both bases: their C library is newer than that of these wheels.
_ARCHITECTURES = ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28")
_SECONDS = 120.0


def _installable(locked: str, platform: str, target: Path) -> subprocess.CompletedProcess[str]:
    """Whether there is a wheel for that platform of each locked package, with a hash of the lock file's."""
    strictly = ["--require-hashes", "--only-binary", ":all:", "--python-version", "3.11"]
    command = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--system-certs", "--dry-run", *strictly]
    return subprocess.run(
        [
            *command,
            "--python-platform",
            platform,
            "--target",
            str(target),
            "--requirement",
            f"requirements/{locked}.txt",
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        timeout=_SECONDS,
    )


@pytest.mark.parametrize("platform", _ARCHITECTURES)
@pytest.mark.parametrize("locked", ["build", "server", "agent"])
def test_every_locked_package_has_a_wheel(locked: str, platform: str, tmp_path: Path) -> None:
    """So nothing has to be compiled, for which the images have no compiler."""
    done = _installable(locked, platform, tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_platform_without_wheels_is_noticed(tmp_path: Path) -> None:
    assert "no usable wheels" in _installable("server", "x86_64-pc-windows-msvc", tmp_path).stderr


@pytest.mark.parametrize("name", ["Dockerfile.server", "Dockerfile.agent"])
def test_no_dockerfile_names_an_architecture(name: str) -> None:
    text = (CHECKOUT / name).read_text(encoding="utf-8")
    assert not [word for word in ("amd64", "arm64", "x86_64", "aarch64") if word in text]
