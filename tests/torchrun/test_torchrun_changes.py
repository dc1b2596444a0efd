"""Restart mode with the backend `kubeai`: what happens to a job's hosts, and what it costs."""

from pathlib import Path

import pytest

from tests.torchrun.conftest import NEWER, OLDER
from tests.torchrun.torchrun_job import assert_as_alone
from tests.torchrun.torchrun_processes import Torch, TorchrunTraining
from tests.torchrun.torchrun_scenes import Row, Scenes
from tests.torchrun.torchrun_world import elastic

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture
def scenes(row: Row) -> Scenes:
    return Scenes(row, "kubeai, restart")


async def test_a_leave_and_its_withdrawal_cost_nothing(torch: Torch, directory: Path, scenes: Scenes) -> None:
    """The host that leaves parks: its agent stays, its GPU is free, and it trains again after the withdrawal."""
    async with elastic(directory.parent, TorchrunTraining(torch, directory)) as job:
        await job.until_trains(4)
        job.announce("node2")
        await scenes.costs_nothing(job, "announced leave of one", 3)
        await job.until_parked("node2")
        job.withdraw("node2")
        await scenes.costs_nothing(job, "withdrawn", 4)
        await assert_as_alone(job, directory.parent, await job.finish())


@pytest.mark.parametrize(("torch", "wrapping"), [(NEWER, "ddp"), (NEWER, "fsdp"), (OLDER, "ddp")], indirect=["torch"])
async def test_announced_changes_cost_nothing(torch: Torch, directory: Path, scenes: Scenes, wrapping: str) -> None:
    """FSDP2 of the older version does not work without a GPU."""
    async with elastic(directory.parent, TorchrunTraining(torch, directory, wrapping)) as job:
        await job.until_trains(4)
        job.announce("node1")
        await scenes.costs_nothing(job, "announced leave of member 0", 3)
        job.reclaim("node1")
        await job.until_step_after(20)
        job.add("node1")
        await scenes.costs_nothing(job, "grown", 4)
        job.announce("node3", "node4")
        await scenes.costs_nothing(job, "announced leave of two at once", 2)
        job.withdraw("node3", "node4")
        await scenes.costs_nothing(job, "both withdrawn", 4)
        job.announce("node2")
        await scenes.costs_nothing(job, "announced leave before the end", 3)
        # A parked agent must end with the others.
        await assert_as_alone(job, directory.parent, await job.finish())


async def test_announced_changes_cost_a_trainer_nothing(torch: Torch, directory: Path, scenes: Scenes) -> None:
    """It goes on with the next sample, as its script keeps the samples of a step the same."""
    async with elastic(directory.parent, TorchrunTraining(torch, directory, "trainer")) as job:
        await job.until_trains(4)
        job.announce("node1")
        await scenes.costs_nothing(job, "announced leave of member 0", 3)
        job.withdraw("node1")
        await scenes.costs_nothing(job, "withdrawn", 4)
        await assert_as_alone(job, directory.parent, await job.finish())


@pytest.mark.parametrize("torch", [NEWER, OLDER], indirect=True)
async def test_losses_cost_no_survivor_a_restart(torch: Torch, directory: Path, scenes: Scenes) -> None:
    """Steps since the last checkpoint are trained again, on the hosts that are left, and parameters are the same."""
    async with elastic(directory.parent, TorchrunTraining(torch, directory)) as job:
        await job.until_trains(4)
        job.kill_worker("node2")
        assert (await scenes.settled(job, "worker killed", 4)).burned == 0
        job.kill_agent("node3")
        assert (await scenes.settled(job, "agent killed", 4)).burned == 0
        job.freeze("node4")
        assert (await scenes.settled(job, "host frozen", 3)).burned == 0
        job.thaw("node4")
        await scenes.costs_nothing(job, "host thawed", 4)
        await assert_as_alone(job, directory.parent, await job.finish())


async def test_it_stops_below_the_minimum_and_resumes_at_another_size(
    torch: Torch, directory: Path, scenes: Scenes
) -> None:
    async with elastic(directory.parent, TorchrunTraining(torch, directory)) as job:
        await job.until_trains(4)
        job.announce("node2", "node3", "node4")
        await job.until_status(lambda status: status.phase == "Suspended" and not status.running, "suspended")
        job.since = 0.0
        job.withdraw("node2", "node3")
        cost = await scenes.settled(job, "suspended, resumed at another size", 3)
        assert cost.redone == 0
        await assert_as_alone(job, directory.parent, await job.finish())
