"""What JobSets do that other kinds do not, under their real controller."""

from pathlib import Path

import pytest

from tests.controlplane.kinds.jobset.jobset_jobs import JobSets
from tests.controlplane.kinds.operator_world import world
from tests.testkit.controlplane.api import ObjectRefused
from tests.testkit.controlplane.running import ControlPlane

pytestmark = pytest.mark.long


async def test_a_pod_that_is_deleted_fails_the_set(jobs: JobSets) -> None:
    """The control run: what a reclaim does to a JobSet that nobody suspends."""
    await jobs.nodes(2)
    await jobs.submit_workers("j", 2, {})
    pods = await jobs.runs("j", 2)
    await jobs.delete_pod(pods["worker-1"])
    assert await jobs.ended("j") == "FailedJobs"


async def test_several_jobs_are_one_run_after_those_that_prepare_it(
    plane: ControlPlane, jobs: JobSets, tmp_path: Path
) -> None:
    """The preparation is no part of the run and is not repeated, and the Jobs are no jobs of their own.

    The driver needs no GPU, so two nodes with one are room for all.
    """
    await jobs.nodes(2)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await jobs.submit(
            "j", {"data": (1, 1), "driver": (1, 1), "worker": (2, 1)}, prepared_by="data", without_gpu="driver"
        )
        data = await jobs.run("j", "data-0")
        await jobs.end(data["data-0"], "Succeeded")
        await jobs.run("j", "driver-0", "worker-0", "worker-1")
        first = await one.decided("j", "Running", run=1, workers=3)
        assert set(first["status"]["hosts"]["workers"]) == {"j-driver-0-0", "j-worker-0-0", "j-worker-1-0"}
        noticed = await one.node_of("j", "worker-1")
        await one.stop("j", [noticed])
        await one.withdraw([noticed])
        await jobs.run("j", "driver-0", "worker-0", "worker-1")
        await one.decided("j", "Running", run=2, workers=3)
        assert await jobs.retries("j") == 0
        assert await one.names() == {"jobset.j"}


@pytest.mark.brief
async def test_a_restart_of_all_jobs_is_another_run(plane: ControlPlane, jobs: JobSets, tmp_path: Path) -> None:
    """Its controller makes all pods anew, before the supervisor suspends a job that is below its minimum."""
    await jobs.nodes(2)
    async with world(plane, jobs, tmp_path / "supervisor", lost_grace_seconds=60.0) as one:
        await jobs.submit("j", {"worker": (1, 2)}, failurePolicy={"maxRestarts": 1})
        pods = await jobs.runs("j", 2)
        await one.decided("j", "Running", run=1, workers=2)
        await jobs.end(pods["worker-1"], "Failed")
        await one.decided("j", "Running", run=2, workers=2)
        assert await jobs.retries("j") == 1


async def test_no_other_size_is_accepted_and_no_old_start_is_counted(
    plane: ControlPlane, jobs: JobSets, tmp_path: Path
) -> None:
    """While it is suspended; its controller clears the start of each Job when it resumes, here one of long ago."""
    await jobs.nodes(2)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await jobs.submit("j", {"worker": (1, 2)}, deadline_seconds=600)
        await jobs.runs("j", 2)
        await one.decided("j", "Running", run=1, workers=2)
        noticed = await one.node_of("j", "worker-1")
        await one.stop("j", [noticed])
        replicated = (await jobs.get("j"))["spec"]["replicatedJobs"]
        replicated[0]["template"]["spec"] |= {"parallelism": 1, "completions": 1}
        with pytest.raises(ObjectRefused, match="immutable"):
            await jobs.patch("j", {"spec": {"replicatedJobs": replicated}})
        await jobs.began("j-worker-0", "2020-01-01T00:00:00Z")
        await one.withdraw([noticed])
        await jobs.runs("j", 2)
        await one.decided("j", "Running", run=2, workers=2)
        assert await jobs.retries("j") == 0
