"""Jobs that Kueue manages, by a supervisor's process with its own rights, under Kueue and their controllers."""

from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.kinds.kind_jobs import ELASTIC
from tests.controlplane.kinds.kind_support import JOB_SET
from tests.controlplane.kinds.kueue.kueue_controller import QUEUES_TRAIN_JOBS
from tests.controlplane.kinds.kueue.kueue_jobs import QueuedJobs
from tests.controlplane.kinds.operator_world import world
from tests.controlplane.kinds.trainjob.trainjob_jobs import TrainJobs
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import until

pytestmark = pytest.mark.long


_OF_ONE_SIZE = frozenset({JOB_SET.kind, TrainJobs.kind})
_KINDS = [
    pytest.param("mpijob", marks=pytest.mark.brief),
    *("batchjob", "jobset", "pytorchjob", "tfjob"),
    pytest.param(
        "trainjob", marks=pytest.mark.skipif(not QUEUES_TRAIN_JOBS, reason="Kueue 0.10 does not know TrainJobs")
    ),
]
of_each_kind = pytest.mark.parametrize("queued", _KINDS, indirect=True)


@of_each_kind
async def test_a_reclaim_suspends_and_resumes_a_job_by_its_workload(
    plane: ControlPlane, queued: QueuedJobs[Any], tmp_path: Path
) -> None:
    """Several times over, and once smaller where its controller takes that; none of its retries is used."""
    jobs = queued.jobs
    await jobs.nodes(3)
    # Two notices are withdrawn one after the other, and a managed job does not grow.
    async with world(plane, jobs, tmp_path / "supervisor", resume_delay_seconds=8.0) as one:
        await queued.submit("j", 3, annotations=ELASTIC)
        for run in range(1, 4):
            await jobs.runs("j", 3)
            await one.decided("j", "Running", run=run)
            noticed = [await one.node_of("j", f"worker-{number}") for number in range(2)]
            await one.stop("j", noticed)
            await queued.is_active("j", active=False)
            assert await jobs.retries("j") == 0
            if run < 3:
                await one.withdraw(noticed)
        size = 3 if jobs.kind in _OF_ONE_SIZE else 2
        await one.withdraw(noticed[: size - 1])
        await jobs.runs("j", size)
        resumed = await one.decided("j", "Running", workers=size)
        assert resumed["spec"]["requestedWorkers"] == 3
        await queued.is_active("j", active=True)
        assert "annotations" not in (await queued.workload("j"))["metadata"]
        assert await jobs.retries("j") == 0


@of_each_kind
async def test_a_preempted_job_saves_waits_in_its_queue_and_is_started_by_it(
    plane: ControlPlane, queued: QueuedJobs[Any], tmp_path: Path
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
        await jobs.noted("urgent")
        await jobs.delete("urgent")
        await jobs.runs("victim", 3)
        await one.decided("victim", "Running", run=2)
        assert await jobs.retries("victim") == 0


@pytest.mark.parametrize("queued", ["batchjob"], indirect=True)
async def test_a_workload_of_another_namespace_stops_no_job(
    plane: ControlPlane, queued: QueuedJobs[Any], tmp_path: Path
) -> None:
    """Its owner has the name and the uid of the job; it is looked at when the job changes."""
    await queued.jobs.nodes(3)
    async with world(plane, queued.jobs, tmp_path / "supervisor") as one:
        await queued.submit("j", 3)
        await queued.jobs.runs("j", 3)
        await one.decided("j", "Running", run=1)
        async with queued.pretended(plane.cluster, "j"):
            await queued.jobs.annotate("j", max_wait_time="600")

            async def changed() -> Any:
                job = await one.supervised("j")
                return job if job["spec"]["maxWaitSeconds"] == 600 else None

            job = await until(changed, "the change of the job is stored")
            assert job["status"]["decision"]["phase"] == "Running"
            assert not job["status"]["observed"].get("queue")


async def test_a_job_in_a_queue_is_suspended_by_the_webhook(queued: QueuedJobs[Any]) -> None:
    """So the supervisor never sees it run before Kueue has admitted it."""
    container = {"name": "train", "image": "none"}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    labels = {"kueue.x-k8s.io/queue-name": "gpus"}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "plain", "labels": labels}}
    path = f"/apis/batch/v1/namespaces/{queued.jobs.namespace.name}/jobs"
    assert (await queued.api.create(path, {**job, "spec": {"template": template}}))["spec"]["suspend"]
