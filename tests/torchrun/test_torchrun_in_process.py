"""In process with the backend `kubeai`: what happens to a job's hosts, while no process of another host restarts."""

import time
from pathlib import Path

import pytest

from tests.torchrun.conftest import NEWER, OLDER
from tests.torchrun.torchrun_job import HOSTS, TorchrunJob, assert_as_alone
from tests.torchrun.torchrun_processes import PROCESSES, Torch, TorchrunTraining
from tests.torchrun.torchrun_scenes import Row, Scenes
from tests.torchrun.torchrun_world import ElasticTorchrun, elastic

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]
_STEPS, _EVERY = 1500, 50
"""The script saves after so many steps, and keeps all checkpoints."""
_COPIED_EVERY, _UNDER_WAY = 5, 2
"""The script has a copy after so many steps, and makes so many more, at most, while one is on its way."""

_CHANGES_EACH = 5

_LEAD, _EARLIEST = 40.0, 20.0
"""Seconds. The margin, two rounds of messages and five steps are 10; a step takes longer on a busy machine."""


@pytest.fixture
def scenes(row: Row) -> Scenes:
    return Scenes(row, "kubeai, in process")


def assert_no_checkpoint_of_a_change(directory: Path, wrapping: str) -> None:
    """Check that the checkpoints of a sharded training are those after so many steps, and no others."""
    saved = sorted(int(path.name.rpartition("-")[2]) for path in directory.glob("checkpoints/*"))
    assert saved == (list(range(_EVERY, _STEPS + 1, _EVERY)) if wrapping == "fsdp" else [])


def assert_not_restarted(job: TorchrunJob, *hosts: str) -> None:
    """Check that these hosts have had no other processes than their first ones."""
    for host in hosts:
        assert len({one.pid for one in job.records() if one.host == host}) == PROCESSES


@pytest.mark.parametrize(
    ("torch", "wrapping"),
    [pytest.param(NEWER, "ddp", marks=pytest.mark.brief), (NEWER, "fsdp"), (NEWER, "own"), (OLDER, "own")],
    indirect=["torch"],
)
async def test_announced_changes_restart_nobody(torch: Torch, directory: Path, scenes: Scenes, wrapping: str) -> None:
    """The host that leaves parks. When it comes back, its new processes join the others, which train meanwhile."""
    async with elastic(
        directory.parent, TorchrunTraining(torch, directory, wrapping, in_process=True, step_seconds=0.1)
    ) as job:
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
        assert_no_checkpoint_of_a_change(directory, wrapping)


@pytest.mark.parametrize(("torch", "wrapping"), [(NEWER, "ddp"), (NEWER, "fsdp"), (OLDER, "ddp")], indirect=["torch"])
async def test_two_leave_at_once_and_come_back(torch: Torch, directory: Path, scenes: Scenes, wrapping: str) -> None:
    """The data is divided among other numbers of ranks each time, and no sample is left out or taken twice."""
    async with elastic(
        directory.parent, TorchrunTraining(torch, directory, wrapping, in_process=True, step_seconds=0.1)
    ) as job:
        await job.until_trains(4)
        job.announce("node3", "node4")
        await scenes.costs_nothing(job, "announced leave of two at once", 2)
        job.withdraw("node3", "node4")
        await scenes.costs_nothing(job, "both withdrawn", 4)
        assert_not_restarted(job, *HOSTS[:2])
        await assert_as_alone(job, directory.parent, await job.finish())
        assert_no_checkpoint_of_a_change(directory, wrapping)


@pytest.mark.parametrize("torch", [NEWER, OLDER], indirect=True)
async def test_losses_cost_no_step(torch: Torch, directory: Path, scenes: Scenes) -> None:
    """The others repeat the step that has failed and was never applied. The host's next processes join them."""
    async with elastic(directory.parent, TorchrunTraining(torch, directory, in_process=True, step_seconds=0.2)) as job:
        await job.until_trains(4)
        job.kill_host("node3")
        await scenes.costs_nothing(job, "host killed", 3)
        job.begin()
        await scenes.costs_nothing(job, "its next agent joins", 4)
        job.kill_worker("node2")
        await scenes.costs_nothing(job, "worker killed", 3)
        job.begin("node2")  # where its agent has used up a restart
        await scenes.costs_nothing(job, "its next workers join", 4)
        job.freeze("node4")
        await scenes.costs_nothing(job, "host frozen", 3)
        job.thaw("node4")
        await scenes.costs_nothing(job, "host thawed", 4)
        assert_not_restarted(job, "node1")
        await assert_as_alone(job, directory.parent, await job.finish())


async def test_a_process_is_killed_while_the_others_connect_for_another_round(
    torch: Torch, directory: Path, scenes: Scenes
) -> None:
    """The round that follows is not the one that was foretold. Its next processes join those that go on."""
    async with elastic(directory.parent, TorchrunTraining(torch, directory, in_process=True, step_seconds=0.2)) as job:
        await job.until_trains(4)
        job.announce("node2")
        job.kill_worker("node3")
        cost = await scenes.settled(job, "leave announced, worker killed", 3)
        assert cost.redone == 0
        assert_not_restarted(job, "node1", "node4")
        await assert_as_alone(job, directory.parent, await job.finish())


async def test_losses_cost_a_sharded_training_no_more_than_the_steps_since_its_last_copy(
    torch: Torch, directory: Path, scenes: Scenes
) -> None:
    """The part of the lost host comes from the memory of the next one. No host goes back to a checkpoint."""
    training = TorchrunTraining(torch, directory, "copies", in_process=True, step_seconds=0.2)
    async with elastic(directory.parent, training) as job:
        await job.until_trains(4)
        job.kill_host("node3")
        killed = await scenes.settled(job, "host killed", 3)
        job.begin()
        await scenes.costs_nothing(job, "its next agent joins", 4)
        job.freeze("node4")
        frozen = await scenes.settled(job, "host frozen", 3)
        for cost in (killed, frozen):
            assert cost.burned == 0
            assert cost.redone <= _COPIED_EVERY + _UNDER_WAY
        job.thaw("node4")
        await scenes.costs_nothing(job, "host thawed", 4)
        assert_not_restarted(job, "node1", "node2")
        await assert_as_alone(job, directory.parent, await job.finish())


@pytest.mark.brief
async def test_a_host_trains_until_shortly_before_it_goes(torch: Torch, directory: Path, scenes: Scenes) -> None:
    """Its processes have the whole state and save nothing, so no time of a checkpoint has to be known for that."""
    training = TorchrunTraining(torch, directory, in_process=True, step_seconds=0.1)
    async with elastic(directory.parent, training, {"JOB_SUPERVISOR_JUST_IN_TIME": "true"}) as job:
        await job.until_trains(4)
        job.announce("node2", lead=_LEAD)
        gone = time.time() + _LEAD
        await scenes.costs_nothing(job, "announced leave, just in time", 3)
        last = max(one.at for one in job.records() if one.host == "node2")
        assert gone - _EARLIEST < last < gone
        assert_not_restarted(job, *HOSTS)
        await assert_as_alone(job, directory.parent, await job.finish())


async def test_twenty_changes_use_up_nothing(torch: Torch, directory: Path) -> None:
    """The agents and workers that stay have as many descriptors and threads as before, and hardly more memory."""
    async with elastic(directory.parent, TorchrunTraining(torch, directory, in_process=True, step_seconds=0.3)) as job:
        await job.until_trains(4)
        await _leave_and_return(job)
        before = job.resources(*HOSTS[2:])
        for _ in range(9):
            await _leave_and_return(job)
        after = job.resources(*HOSTS[2:])
        assert before.keys() == after.keys()
        for pid, used in after.items():
            assert used.within(before[pid], mebibytes=8), f"{used} after {before[pid]}"
        await job.finish()


@pytest.mark.parametrize("wrapping", ["late", "ddp"])
async def test_changes_cost_no_step_whether_processes_connect_early_or_late(
    torch: Torch, directory: Path, scenes: Scenes, wrapping: str
) -> None:
    """The table has the pause of each change, which depends on what else the machine does."""
    training = TorchrunTraining(torch, directory, wrapping, in_process=True, step_seconds=0.1)
    async with elastic(directory.parent, training) as job:
        await job.until_trains(4)
        for _ in range(_CHANGES_EACH):
            job.announce("node2")
            await scenes.costs_nothing(job, "announced leave", 3)
            await job.until_parked("node2")
            job.withdraw("node2")
            await scenes.costs_nothing(job, "withdrawn", 4)
        await job.finish()


async def _leave_and_return(job: ElasticTorchrun) -> None:
    job.announce("node2")
    await job.until_trains(3)
    await job.until_parked("node2")
    job.withdraw("node2")
    await job.until_trains(4)
