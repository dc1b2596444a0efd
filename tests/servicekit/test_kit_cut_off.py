"""A network that is cut without a word."""

import subprocess
import sys

import pytest

from tests.testkit.own_network import OWN_NETWORK, may_have_own_network


@pytest.mark.skipif(not may_have_own_network(), reason="needs a network of its own to cut")
def test_a_watch_that_is_cut_off_is_missed_within_half_a_minute() -> None:
    """Although nothing was due on it for a minute: until then what it shows would pass for the present."""
    command = [*OWN_NETWORK, sys.executable, "-m", "tests.servicekit.kit_cut_off"]
    told = subprocess.run(command, capture_output=True, check=True, timeout=100, text=True).stdout
    assert 10.0 < float(told.split()[0]) < 30.0
