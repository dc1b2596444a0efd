"""A whole job with another cloud's metadata, and with metadata that fail."""

import time
from pathlib import Path

import pytest

from simulator.cloud.dialects import SimulatedCloud
from simulator.cloud.faults import MetadataFault
from simulator.cloud.schedule import AddNode, KillNode
from simulator.cloud.trace import Node
from simulator.harness import world
from simulator.services import ServedJobPlan
from tests.testkit.worlds import LEAD, group, node, told_to_stop


# Short runs have the words of each cloud in tests/node_agent, AWS below, and this reclaim in test_e2e_reclaims.
# The other clouds are asked as Alibaba Cloud is.
@pytest.mark.long
@pytest.mark.parametrize("cloud", [SimulatedCloud.AWS, SimulatedCloud.AZURE, SimulatedCloud.GCP])
async def test_a_job_is_saved_by_what_another_cloud_announces(cloud: SimulatedCloud, tmp_path: Path) -> None:
    """From its own metadata in its own words: stopped by rank 0's checkpoint, and resumed elsewhere."""
    async with world(tmp_path, ["node1", "node2", "node3", "node4"], cloud=cloud) as one:
        job = one.start_job(ServedJobPlan(min_workers=3, max_workers=4, steps=120, step_seconds=0.05))
        await one.until_training(job, workers=4)
        await one.play(
            [*group("g", 2, 3), KillNode(LEAD, node(2)), KillNode(LEAD, node(3)), AddNode(LEAD, Node("node5"))]
        )
        assert await job.wait(90) == 0
    verdict = one.verdict(job)
    assert verdict.ok, verdict.failures
    assert (verdict.figures.suspensions, verdict.figures.resumes) == (1, 1)
    assert told_to_stop(one.events(job), run=1) == {0}


async def test_metadata_that_misbehave_stop_no_job(tmp_path: Path) -> None:
    """All nodes unknown at once, one way after another, while one is noticed: only that one host leaves."""
    async with world(tmp_path, ["node1", "node2", "node3"], cloud=SimulatedCloud.AWS) as one:
        job = one.start_job(ServedJobPlan(min_workers=2, max_workers=3, steps=260, step_seconds=0.05))
        await one.until_training(job, workers=3)
        one.metadata.warn(node(1), time.time())
        await one.play(group("g", 2))
        await one.until_training(job, workers=2)
        for fault in (MetadataFault.BLACK_HOLE, MetadataFault.REFUSED, MetadataFault.REDIRECT, MetadataFault.NO_TOKENS):
            await one.metadata.set_fault(fault)
            await one.until(lambda status: not status.known(), f"all to be unknown during {fault}")
            assert job.exclusions_now() == ("node2",)
            await one.metadata.set_fault(None)
            await one.until(lambda status: status.known() >= {"node1", "node3"}, "all to be known again")
        assert job.exclusions_now() == ("node2",)
        assert await job.wait(90) == 0
    verdict = one.verdict(job)
    assert verdict.ok, verdict.failures
    assert verdict.figures.suspensions == 0
    assert verdict.figures.changes_per_group == (1,)
