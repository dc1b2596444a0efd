"""In process with the backend `kubeai`: what happens to a job's hosts, while no process of another host restarts."""

from pathlib import Path

import pytest

from tests.torchrun.conftest import NEWER, OLDER
from tests.torchrun.torchrun_job import HOSTS, Job, assert_as_alone
from tests.torchrun.torchrun_processes import PROCESSES, Torch, Training
from tests.torchrun.torchrun_scenes import Row, Scenes
from tests.torchrun.torchrun_world import elastic

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.fixture
def scenes(row: Row) -> Scenes:
    return Scenes(row, "kubeai, in process")


def assert_not_restarted(job: Job, *hosts: str) -> None:
    """Check that these hosts have had no other processes than their first ones."""
    for host in hosts:
        assert len({one.pid for one in job.records() if one.host == host}) == PROCESSES


@pytest.mark.parametrize(
    ("torch", "wrapping"),
    [pytest.param(NEWER, "ddp", marks=pytest.mark.brief), (OLDER, "ddp")],
    indirect=["torch"],
)
async def test_announced_changes_restart_nobody(torch: Torch, directory: Path, scenes: Scenes, wrapping: str) -> None:
    """The host that leaves parks. When it comes back, its new processes join the others, which train meanwhile."""
    async with elastic(directory.parent, Training(torch, directory, wrapping, in_process=True)) as job:
        await job.until_trains(4)
        job.announce("node2")
        await scenes.costs_nothing(job, "announced leave of one", 3)
        await job.until_parked("node2")
        job.withdraw("node2")
        await scenes.costs_nothing(job, "withdrawn", 4)
        job.announce("node1")
        await scenes.costs_nothing(job, "announced leave of member 0", 3)
        assert_not_restarted(job, *HOSTS[2:])
        await assert_as_alone(job, directory.parent, await job.finish())


@pytest.mark.parametrize("torch", [NEWER, OLDER], indirect=True)
async def test_a_lost_host_costs_no_step(torch: Torch, directory: Path, scenes: Scenes) -> None:
    """The others repeat the step that has failed and was never applied. The host's next agent joins them."""
    async with elastic(directory.parent, Training(torch, directory, in_process=True)) as job:
        await job.until_trains(4)
        job.kill_host("node3")
        await scenes.costs_nothing(job, "host killed", 3)
        job.begin()
        await scenes.costs_nothing(job, "its next agent joins", 4)
        assert_not_restarted(job, "node1", "node2", "node4")
        await assert_as_alone(job, directory.parent, await job.finish())
