"""The library runs under every Python from 3.8 on that can be found."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.sdk.sdk_scripts import SDK
from tests.testkit.pythons import VERSIONS, found

SELF_CHECK = Path(__file__).with_name("sdk_selfcheck.py")


_SHORT = "3.8", "3.13"
"""The oldest, and the newest that usual machines have."""


@pytest.mark.parametrize(
    "version", [each if each in _SHORT else pytest.param(each, marks=pytest.mark.long) for each in VERSIONS]
)
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
