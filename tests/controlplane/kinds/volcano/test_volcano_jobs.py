"""Volcano's jobs through reclaims, by a supervisor's process with its own rights, under the real Volcano."""

from pathlib import Path

import pytest

from tests.controlplane.kinds.kind_jobs import MANAGED, PREFIX
from tests.controlplane.kinds.operator_world import world
from tests.controlplane.kinds.volcano.volcano_jobs import VolcanoJobs
from tests.testkit.controlplane.running import ControlPlane

pytestmark = pytest.mark.long

_RESTARTS = [{"event": "PodEvicted", "action": "RestartJob"}]


async def test_a_notice_stops_the_job_which_resumes_smaller_and_grows_with_its_next_resume(
    plane: ControlPlane, jobs: VolcanoJobs, tmp_path: Path
) -> None:
    """With the pods of its other task, and never below the minimum of its gang; no retry is used."""
    await jobs.nodes(4)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await jobs.submit("j", {"ps": 1, "worker": 3}, min_available=3)
        await jobs.tasks_run("j", {"ps": 1, "worker": 3})
        first = await one.decided("j", "Running", run=1, workers=4)
        assert first["spec"]["minWorkers"] == 3
        noticed = await one.node_of("j", "worker-0")
        await one.stop("j", [noticed])
        await jobs.tasks_run("j", {"ps": 1, "worker": 2})
        smaller = await one.decided("j", "Running", run=2, workers=3)
        assert smaller["spec"]["requestedWorkers"] == 4
        await one.withdraw([noticed])
        await one.suspend("j")
        await one.resume("j")
        await jobs.tasks_run("j", {"ps": 1, "worker": 3})
        await one.decided("j", "Running", run=3, workers=4)
        job = await jobs.get("j")
        assert job["spec"]["minAvailable"] == 3
        assert [task["minAvailable"] for task in job["spec"]["tasks"]] == [1, 3]
        assert set(job["metadata"]["annotations"]) == {*MANAGED, f"{PREFIX}suspensions"}
        assert await jobs.retries("j") == 0


async def test_its_own_commands_fail_the_job_at_the_third_reclaim(jobs: VolcanoJobs) -> None:
    """The obvious way, as a control: each resume uses one of the three retries that a job has."""
    await jobs.nodes(1)
    await jobs.submit("j", {"worker": 1})
    for phase in ("Running", "Running", "Failed"):
        await jobs.tasks_run("j", {"worker": 1})
        await jobs.command("j", "AbortJob")
        await jobs.phase("j", "Aborted")
        await jobs.command("j", "ResumeJob")
        await jobs.phase("j", phase)


async def test_a_policy_that_restarts_the_job_costs_a_retry_for_each_stop(
    plane: ControlPlane, jobs: VolcanoJobs, tmp_path: Path
) -> None:
    """Volcano takes the pods that go for evicted ones. The job still resumes from its checkpoint."""
    await jobs.nodes(2)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await jobs.submit("j", {"worker": 2}, policies=_RESTARTS)
        await jobs.tasks_run("j", {"worker": 2})
        await one.decided("j", "Running", run=1, workers=2)
        noticed = await one.node_of("j", "worker-1")
        await one.stop("j", [noticed])
        await one.withdraw([noticed])
        await jobs.tasks_run("j", {"worker": 2})
        await one.decided("j", "Running", run=2)
        assert await jobs.retries("j") >= 1
