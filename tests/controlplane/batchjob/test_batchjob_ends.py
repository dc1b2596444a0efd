"""How Indexed Jobs end, and what a person does to them, under Kubernetes' own controller."""

from pathlib import Path

import pytest

from tests.controlplane.batchjob.batchjob_jobs import MANAGED, PREFIX, BatchJobs
from tests.controlplane.operator_world import world
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import until

pytestmark = pytest.mark.long


async def test_a_job_whose_pods_succeed_is_finished(plane: ControlPlane, jobs: BatchJobs, tmp_path: Path) -> None:
    """Also after a reclaim: no index of an earlier run counts as completed."""
    await jobs.nodes(2)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await jobs.submit("j", 2)
        await jobs.runs("j", 2)
        await one.decided("j", "Running", run=1)
        noticed = await one.node_of("j", "worker-1")
        await one.stop("j", [noticed])
        await one.withdraw([noticed])
        pods = await jobs.runs("j", 2)
        await one.decided("j", "Running", run=2)
        for pod in pods.values():
            await jobs.end(pod, "Succeeded")
        await one.decided("j", "Finished")
        assert (await jobs.conditions("j"))["Complete"]


async def test_a_job_that_waits_for_too_long_times_out(plane: ControlPlane, jobs: BatchJobs, tmp_path: Path) -> None:
    """It stays suspended, whatever room there is, until a person resumes it as the page says."""
    await jobs.nodes(2)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await jobs.submit("j", 2, {**MANAGED, f"{PREFIX}max-wait-time": "3"})
        await jobs.runs("j", 2)
        await one.decided("j", "Running", run=1)
        noticed = await one.node_of("j", "worker-1")
        await one.stop("j", [noticed])
        await one.decided("j", "TimedOut")

        async def is_marked() -> bool:
            marks = (await jobs.get("j"))["metadata"]["annotations"]
            return bool(marks.get(f"{PREFIX}job-status") == "timeout")

        await until(is_marked, "the job is marked")
        await one.withdraw([noticed])
        assert (await jobs.get("j"))["spec"]["suspend"]
        freed = {f"{PREFIX}suspended-by": None, f"{PREFIX}job-status": None}
        await jobs.patch("j", {"metadata": {"annotations": freed}, "spec": {"suspend": False}})
        await jobs.runs("j", 2)
        await one.decided("j", "Running")


async def test_a_job_that_a_person_suspends_is_theirs(plane: ControlPlane, jobs: BatchJobs, tmp_path: Path) -> None:
    """It is taken up again once that person resumes it."""
    await jobs.nodes(2)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await jobs.submit("j", 2)
        await jobs.runs("j", 2)
        await one.decided("j", "Running", run=1)
        await jobs.patch("j", {"spec": {"suspend": True}})
        await jobs.has_pods("j")
        await one.released("j")
        await jobs.patch("j", {"spec": {"suspend": False}})
        await jobs.runs("j", 2)
        await one.decided("j", "Running")
        assert await jobs.failures("j") == 0
