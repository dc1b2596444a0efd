import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process

import pytest

from tests.testkit.controlplane.running import ControlPlane

pytestmark = pytest.mark.long


async def _started(plane: ControlPlane, *options: str) -> Process:
    command = ["-m", "simulator", "et-operator", "--kubeconfig", str(plane.cluster.kubeconfig), *options]
    return await asyncio.create_subprocess_exec(sys.executable, *command, stderr=PIPE)


@pytest.mark.brief
async def test_it_says_that_it_is_a_stand_in_and_ends_when_told(own_controlplane: ControlPlane) -> None:
    """It makes its definitions where that is asked for, and ends without them where it is not."""
    without = await _started(own_controlplane)
    _, complaint = await without.communicate()
    assert without.returncode == 1
    assert "stand-in" in complaint.decode()
    process = await _started(own_controlplane, "--define", "--quick")
    assert process.stderr is not None
    assert "a stand-in, not et-operator itself" in (await process.stderr.readline()).decode()
    process.send_signal(signal.SIGTERM)
    await process.communicate()
    assert process.returncode == 0
