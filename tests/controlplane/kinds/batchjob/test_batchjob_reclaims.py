"""Indexed Jobs through reclaims, by a supervisor's process with its own rights, under Kubernetes' own controller."""

from pathlib import Path

import pytest

from tests.controlplane.kinds.batchjob.batchjob_jobs import BatchJobs
from tests.controlplane.kinds.operator_world import world
from tests.testkit.controlplane.running import ControlPlane

pytestmark = pytest.mark.long


@pytest.mark.brief
async def test_a_deadline_is_not_counted_while_the_job_is_suspended(
    plane: ControlPlane, jobs: BatchJobs, tmp_path: Path
) -> None:
    """The controller compares it with the last start, here of long ago, until it has noted the next one."""
    await jobs.nodes(2)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await jobs.submit("j", 2, activeDeadlineSeconds=600)
        await jobs.runs("j", 2)
        await one.decided("j", "Running", run=1, workers=2)
        noticed = await one.node_of("j", "worker-1")
        await one.stop("j", [noticed])
        await jobs.began("j", "2020-01-01T00:00:00Z")
        await one.withdraw([noticed])
        await jobs.runs("j", 2)
        await one.decided("j", "Running", run=2, workers=2)
        assert not (await jobs.conditions("j")).get("Failed")


async def test_a_pod_that_is_deleted_instead_burns_a_retry(jobs: BatchJobs) -> None:
    """The control run: what a reclaim does to a job that nobody suspends."""
    await jobs.nodes(2)
    await jobs.submit("j", 2, {})
    pods = await jobs.runs("j", 2)
    await jobs.delete_pod(pods["worker-1"])
    assert await jobs.ended("j") == "BackoffLimitExceeded"


async def test_a_job_that_has_used_a_retry_is_suspended_and_resumed(
    plane: ControlPlane, jobs: BatchJobs, tmp_path: Path
) -> None:
    """The pod that has failed stays for its logs, and is not waited for."""
    await jobs.nodes(2)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await jobs.submit("j", 2, backoffLimit=1)
        before = await jobs.runs("j", 2)
        await one.decided("j", "Running", run=1)
        await jobs.end(before["worker-1"], "Failed")
        await jobs.runs("j", 2)
        noticed = await one.node_of("j", "worker-1")
        await one.stop("j", [noticed])
        await one.withdraw([noticed])
        await jobs.runs("j", 2)
        await one.decided("j", "Running", run=2, workers=2)
        assert await jobs.retries("j") == 1


async def test_the_part_of_another_job_is_left_alone(plane: ControlPlane, jobs: BatchJobs, tmp_path: Path) -> None:
    """Its owner suspends it, whatever its annotations say."""
    await jobs.nodes(2)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await jobs.submit("whole", 1)
        await jobs.submit("part", 1, owner="whole")
        await jobs.runs("part", 1)
        await one.decided("whole", "Running", run=1)
        await one.released("part")
