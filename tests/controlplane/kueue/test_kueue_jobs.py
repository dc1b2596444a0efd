"""Jobs that Kueue manages, by a supervisor's process with its own rights, under the real Kueue and mpi-operator."""

from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.batchjob.batchjob_jobs import BatchJobs
from tests.controlplane.kind_jobs import ELASTIC
from tests.controlplane.kueue.kueue_jobs import J, QueuedJobs
from tests.controlplane.mpijob.mpijob_jobs import MpiJobs
from tests.controlplane.operator_world import world
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import until

pytestmark = pytest.mark.long


@pytest.mark.brief
async def test_a_reclaim_suspends_and_resumes_a_job_by_its_workload(
    plane: ControlPlane, queued: QueuedJobs[MpiJobs], tmp_path: Path
) -> None:
    """Several times over, and once smaller; no retry of the launcher's Job, which allows none, is burned."""
    await _is_reclaimed_and_resumed(plane, queued, tmp_path)


async def test_a_reclaim_suspends_and_resumes_an_indexed_job_by_its_workload(
    plane: ControlPlane, queued_batch: QueuedJobs[BatchJobs], tmp_path: Path
) -> None:
    """Kueue writes the Job's own field, as it does for all kinds."""
    await _is_reclaimed_and_resumed(plane, queued_batch, tmp_path, annotations=ELASTIC)


async def _is_reclaimed_and_resumed(plane: ControlPlane, queued: QueuedJobs[J], tmp_path: Path, **asked: Any) -> None:
    jobs = queued.jobs
    await jobs.nodes(3)
    # Two notices are withdrawn one after the other, and a managed job does not grow.
    async with world(plane, jobs, tmp_path / "supervisor", resume_delay_seconds=8.0) as one:
        await queued.submit("j", 3, **asked)
        for run in range(1, 4):
            await jobs.runs("j", 3)
            await one.decided("j", "Running", run=run)
            noticed = [await one.node_of("j", f"worker-{number}") for number in range(2)]
            await one.stop("j", noticed)
            await queued.is_active("j", active=False)
            assert await jobs.retries("j") == 0
            if run < 3:
                await one.withdraw(noticed)
        await one.withdraw(noticed[:1])
        await jobs.runs("j", 2)
        smaller = await one.decided("j", "Running", workers=2)
        assert smaller["spec"]["requestedWorkers"] == 3
        await queued.is_active("j", active=True)
        assert "annotations" not in (await queued.workload("j"))["metadata"]
        assert await jobs.retries("j") == 0


@pytest.mark.brief
async def test_a_preempted_job_saves_waits_in_its_queue_and_is_started_by_it(
    plane: ControlPlane, queued: QueuedJobs[MpiJobs], tmp_path: Path
) -> None:
    jobs = queued.jobs
    await jobs.nodes(3)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await queued.submit("victim", 3)
        await jobs.runs("victim", 3)
        await one.decided("victim", "Running", run=1)
        rank_zero = await one.train("victim", "worker-0")
        await queued.submit("urgent", 3, urgent=True, annotations={})
        directive = await rank_zero.lines.matching(type="directive", directive="STOP")
        assert "Kueue evicts the job: Preempted." in directive["reason"]
        await rank_zero.reports("left", directive)
        await one.decided("victim", "Queued")

        async def waits() -> bool:
            decision = (await one.supervised("victim"))["status"]["decision"]
            return bool(decision["reason"] == "The job waits in the queue gpus of Kueue.")

        await until(waits, "the job waits in its queue")
        assert (await queued.workload("victim"))["spec"]["active"]
        await jobs.runs("urgent", 3)
        await queued.delete("urgent")
        await jobs.runs("victim", 3)
        await one.decided("victim", "Running", run=2)
        assert await jobs.retries("victim") == 0
