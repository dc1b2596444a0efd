"""Restart mode with workers that are forked from a template: what a change costs beside a start of python and torch."""

from pathlib import Path

import pytest

from tests.torchrun.torchrun_job import assert_as_alone
from tests.torchrun.torchrun_processes import Torch, TorchrunTraining
from tests.torchrun.torchrun_scenes import Row, Scenes
from tests.torchrun.torchrun_world import elastic

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
async def test_announced_changes_cost_nothing(torch: Torch, directory: Path, row: Row, *, warm: bool) -> None:
    """Also on a machine that is new: its template is made before its agent joins."""
    scenes = Scenes(row, "kubeai, warm" if warm else "kubeai, restart")
    async with elastic(directory.parent, TorchrunTraining(torch, directory, warm=warm)) as job:
        await job.until_trains(4)
        job.announce("node2")
        await scenes.costs_nothing(job, "announced leave of one", 3)
        job.withdraw("node2")
        await scenes.costs_nothing(job, "withdrawn", 4)
        job.announce("node3")
        await scenes.costs_nothing(job, "announced leave of one", 3)
        job.reclaim("node3")
        await job.until_step_after(20)
        job.add("node3")
        await scenes.costs_nothing(job, "grown", 4)
        await assert_as_alone(job, directory.parent, await job.finish())
