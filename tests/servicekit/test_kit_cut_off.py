"""A network that is cut without a word."""

import subprocess
import sys

import pytest

CUT_OFF = ["unshare", "--user", "--map-root-user", "--net"]


def _may_cut() -> bool:
    try:
        return subprocess.run([*CUT_OFF, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not _may_cut(), reason="needs a network of its own to cut")
def test_a_watch_that_is_cut_off_is_missed_within_half_a_minute() -> None:
    """Although nothing was due on it for a minute: until then what it shows would pass for the present."""
    command = [*CUT_OFF, sys.executable, "-m", "tests.servicekit.kit_cut_off"]
    told = subprocess.run(command, capture_output=True, check=True, timeout=100, text=True).stdout
    assert 10.0 < float(told.split()[0]) < 30.0
