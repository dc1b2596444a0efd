"""The library runs under every Python from 3.8 on that can be found."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.sdk.sdk_scripts import SDK

SELF_CHECK = Path(__file__).with_name("sdk_selfcheck.py")
VERSIONS = tuple(f"3.{minor}" for minor in range(8, 16))


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
        known.setdefault(version_of(python), python)
    return known


def version_of(python: str) -> str:
    """Which Python that is, "" for one that is not whole."""
    shown = [python, "-c", "import ssl, sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(shown, capture_output=True, text=True, check=False).stdout.strip()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_whole_library_runs_under(version: str) -> None:
    """Imports all of it and walks the line once; both sides are of that interpreter."""
    python = found().get(version)
    if python is None:
        pytest.skip(f"no Python {version} here; KUBEAI_TEST_PYTHONS may name one")
    # -W error: but from 3.12 on os.fork() warns in any process with threads, which is what is tried.
    strict = ("-X", "dev", "-B", "-W", "error", "-W", "ignore:This process:DeprecationWarning")
    done = subprocess.run(
        [python, *strict, str(SELF_CHECK)],
        env={"PYTHONPATH": str(SDK), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, f"checked by {version}\n"), done.stderr


def test_there_is_a_list_of_interpreters() -> None:
    """The one that runs the tests is at least asked about, so that the test above cannot skip them all unseen."""
    assert set(found()) & set(VERSIONS)
