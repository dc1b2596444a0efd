"""Restart mode with the backend `kubeai`: what happens to a job's hosts, and what it costs."""

import json
from pathlib import Path

import pytest

from tests.torchrun.conftest import NEWER, OLDER, Row
from tests.torchrun.torchrun_job import run_alone
from tests.torchrun.torchrun_processes import Torch, Training
from tests.torchrun.torchrun_records import Cost
from tests.torchrun.torchrun_world import Elastic, elastic

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

_BACKEND = "kubeai, restart"


def free(cost: Cost | None) -> bool:
    """Whether a change cost no restart and no step."""
    return cost is not None and (cost.burned, cost.redone) == (0, 0)


class Scenes:
    """Plays events to a job, one after the other, and notes what each has cost."""

    def __init__(self, job: Elastic, row: Row, wrapping: str = "ddp") -> None:
        self._job = job
        self._row = row
        self._backend = f"{_BACKEND}, {wrapping}"

    async def settled(self, event: str, hosts: int) -> Cost:
        cost = await self._job.until_trains(hosts)
        assert cost is not None
        self._row(event, self._backend, cost)
        return cost


async def assert_as_alone(job: Elastic, root: Path, steps: int) -> None:
    """Check that the parameters are those of a single process that trained the same steps."""
    directory = root / "alone"
    directory.mkdir()
    alone = Training(job.training.torch, directory, job.training.wrapping)
    await run_alone(root, alone, steps)
    theirs, ours = ([*_parameters(one)] for one in (directory, job.training.directory))
    assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)


def _parameters(directory: Path) -> list[float]:
    saved = json.loads((directory / "parameters.json").read_text(encoding="ascii"))
    return [number for parameter in saved for number in parameter]


@pytest.mark.brief
async def test_a_leave_and_its_withdrawal_cost_nothing(torch: Torch, directory: Path, row: Row) -> None:
    """The host that leaves parks: its agent stays, its GPU is free, and it trains again after the withdrawal."""
    async with elastic(directory.parent, Training(torch, directory)) as job:
        scenes = Scenes(job, row)
        await job.until_trains(4)
        job.announce("node2")
        assert free(await scenes.settled("announced leave of one", 3))
        await job.until_parked("node2")
        job.withdraw("node2")
        assert free(await scenes.settled("withdrawn", 4))
        await assert_as_alone(job, directory.parent, await job.finish())


@pytest.mark.parametrize(("torch", "wrapping"), [(NEWER, "ddp"), (NEWER, "fsdp"), (OLDER, "ddp")], indirect=["torch"])
async def test_announced_changes_cost_nothing(torch: Torch, directory: Path, row: Row, wrapping: str) -> None:
    """FSDP2 of the older version does not work without a GPU."""
    async with elastic(directory.parent, Training(torch, directory, wrapping)) as job:
        scenes = Scenes(job, row, wrapping)
        await job.until_trains(4)
        job.announce("node1")
        assert free(await scenes.settled("announced leave of member 0", 3))
        job.reclaim("node1")
        await job.until_step_after(20)
        job.add("node1")
        assert free(await scenes.settled("grown", 4))
        job.announce("node3", "node4")
        assert free(await scenes.settled("announced leave of two at once", 2))
        job.withdraw("node3", "node4")
        assert free(await scenes.settled("both withdrawn", 4))
        job.announce("node2")
        assert free(await scenes.settled("announced leave before the end", 3))
        # A parked agent must end with the others.
        await assert_as_alone(job, directory.parent, await job.finish())


@pytest.mark.parametrize("torch", [NEWER, OLDER], indirect=True)
async def test_losses_cost_no_survivor_a_restart(torch: Torch, directory: Path, row: Row) -> None:
    """Steps since the last checkpoint are trained again, on the hosts that are left, and parameters are the same."""
    async with elastic(directory.parent, Training(torch, directory)) as job:
        scenes = Scenes(job, row)
        await job.until_trains(4)
        job.kill_worker("node2")
        assert (await scenes.settled("worker killed", 4)).burned <= 1
        job.kill_agent("node3")
        assert (await scenes.settled("agent killed", 4)).burned == 0
        job.freeze("node4")
        assert (await scenes.settled("host frozen", 3)).burned == 0
        job.thaw("node4")
        assert free(await scenes.settled("host thawed", 4))
        await assert_as_alone(job, directory.parent, await job.finish())


async def test_below_the_minimum_it_stops_and_resumes_at_another_size(torch: Torch, directory: Path, row: Row) -> None:
    async with elastic(directory.parent, Training(torch, directory)) as job:
        scenes = Scenes(job, row)
        await job.until_trains(4)
        job.announce("node2", "node3", "node4")
        await job.until_status(lambda status: status.phase == "Suspended" and not status.running, "suspended")
        job.since = 0.0
        job.withdraw("node2", "node3")
        cost = await scenes.settled("suspended, resumed at another size", 3)
        assert cost.redone == 0
        await assert_as_alone(job, directory.parent, await job.finish())
