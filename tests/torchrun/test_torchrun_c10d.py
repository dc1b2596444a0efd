"""What the same events cost under torchrun's own backend, in the table beside ours."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.torchrun.conftest import NEWER, OLDER
from tests.torchrun.torchrun_c10d import C10d, c10d
from tests.torchrun.torchrun_processes import Torch, TorchrunTraining
from tests.torchrun.torchrun_scenes import Row

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


async def test_an_announced_leave_costs_every_survivor_a_restart(torch: Torch, directory: Path, row: Row) -> None:
    """Nobody tells c10d of the announcement: the agent is ended at the deadline, as its pod would be."""
    async with c10d(directory.parent / "c10d", TorchrunTraining(torch, directory)) as job:
        await job.until_trains(4)
        job.terminate_agent("node2")
        cost = await job.until_trains(3)
        assert cost is not None
        row("announced leave of one", "c10d", cost)
        assert cost.burned == 1
        assert cost.redone > 0


@dataclass(frozen=True, slots=True)
class Loss:
    """What happens to a host, and how many hosts train afterwards."""

    event: str
    happen: Callable[[C10d, str], None]
    hosts: int


# Not a frozen host: its peers wait in a collective for the group's timeout of half an hour, and nobody ends them.
LOSSES = (
    Loss("worker killed", C10d.kill_worker, 4),
    Loss("agent killed", C10d.kill_host, 3),
)


@pytest.mark.parametrize("torch", [NEWER, OLDER], indirect=True)
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.event)
async def test_a_loss_costs_steps(torch: Torch, directory: Path, row: Row, loss: Loss) -> None:
    """All steps since the last checkpoint are trained again."""
    async with c10d(directory.parent / "c10d", TorchrunTraining(torch, directory)) as job:
        await job.until_trains(4)
        loss.happen(job, "node3")
        cost = await job.until_trains(loss.hosts)
        assert cost is not None
        row(loss.event, "c10d", cost)
        assert cost.redone > 0
