"""The Pythons of this machine, and the suites of the services under each of them.

Run as a module: VERSION... [-- PYTEST ARGUMENT...]. Each version gets an environment outside the checkout, made once
for the locked packages.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from tests.testkit import caches

_CHECKOUT = Path(__file__).parents[2]
_LOCK = _CHECKOUT / "requirements" / "dev.txt"
VERSIONS = tuple(f"3.{minor}" for minor in range(8, 16))
_SUITES = ("node_agent", "packaging", "sdk", "servicekit", "supervisor", "trainingjob_operator")


@cache
def found() -> Mapping[str, str]:
    """Interpreters by version: those named in KUBEAI_TEST_PYTHONS (as in PATH), else those in the usual places."""
    named = os.environ.get("KUBEAI_TEST_PYTHONS")
    if named:
        candidates = named.split(os.pathsep)
    else:
        versions = sorted(Path.home().glob(".pyenv/versions/*/bin/python"))
        candidates = [*(f"/usr/bin/python{version}" for version in VERSIONS), *map(str, versions)]
    known: dict[str, str] = {}
    for python in filter(shutil.which, candidates):
        known.setdefault(_version_of(python), python)
    return known


def _version_of(python: str) -> str:
    """Which Python that is, "" for one that is not whole."""
    shown = [python, "-c", "import ssl, sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(shown, capture_output=True, text=True, check=False).stdout.strip()


def main(versions: Sequence[str], arguments: Sequence[str]) -> int:
    """Run the suites under each version, and return how many have failed."""
    failed = 0
    for version in versions:
        python = found().get(version)
        if python is None:
            sys.stderr.write(f"skipped: no Python {version} here; KUBEAI_TEST_PYTHONS may name one\n")
            continue
        suites = [f"tests/{suite}" for suite in _SUITES]
        command = [_environment(version, python), "-m", "pytest", "--numprocesses", "2", *suites, *arguments]
        failed += bool(subprocess.run(command, check=False, cwd=_CHECKOUT).returncode)
    return failed


def _environment(version: str, python: str) -> str:
    """The interpreter of an environment with the locked packages and the checkout."""
    lock = hashlib.sha256(_LOCK.read_bytes()).hexdigest()[:12]
    home = caches.cache("pythons", f"{version}-{lock}")
    inside = str(home / "bin" / "python")
    with caches.alone(home.parent):
        pip = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        complete = home / "complete"
        if not complete.exists():
            subprocess.run([python, "-m", "venv", "--clear", str(home)], check=True)
            subprocess.run([*pip, "--require-hashes", "-r", str(_LOCK)], check=True)
            complete.touch()
        local = ["--no-build-isolation", "--no-deps", "-e", str(_CHECKOUT), "-e", str(_CHECKOUT / "sdk")]
        subprocess.run([*pip, *local], check=True)
    return inside


if __name__ == "__main__":
    mark = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    sys.exit(main(sys.argv[1:mark], sys.argv[mark + 1 :]))
