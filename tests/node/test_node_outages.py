"""Outages of our components on a real node do not interrupt training, and protection returns afterwards."""

import asyncio
import time
from pathlib import Path

import pytest

from tests.node.node_world import TRAIN, NodeWorld
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]
_LEAD_SECONDS = 60.0
_SUPERVISORS = 2


async def test_jobs_train_on_while_no_supervisor_runs(here: NodeWorld) -> None:
    """One from before, and one whose pods nobody has shaped; the first is told of a reclaim once there is somebody."""
    home = await here.train("before")
    await here.supervisors(0)
    late = await here.start("late", TRAIN)
    await until(lambda: _steps(late), "pods are made and train")
    await here.more_steps(home)
    await here.supervisors(_SUPERVISORS)
    here.reclaim(time.time() + _LEAD_SECONDS)
    assert (await here.saved(home))["kind"] == "STOP"
    await here.decided("before", "Suspended")


async def test_a_job_trains_on_while_the_api_server_is_away(here: NodeWorld, plane: ControlPlane) -> None:
    home = await here.train("away")
    plane.kill(BinaryProgram.API_SERVER)
    try:
        await here.more_steps(home)
        here.reclaim(time.time() + _LEAD_SECONDS)
        await here.more_steps(home)
    finally:
        plane.launch(BinaryProgram.API_SERVER)
        await asyncio.to_thread(plane.wait_ready, BinaryProgram.API_SERVER)
    assert (await here.saved(home))["kind"] == "STOP"
    await here.decided("away", "Suspended")
    await here.ready(_SUPERVISORS)


async def _steps(home: Path) -> bool:
    return (home / "step").exists()
