"""Jobs that a stand-in for koord-queue holds back, admits and preempts, under their real controllers."""

from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.kinds.batchjob.batchjob_jobs import BatchJobs
from tests.controlplane.kinds.kubequeue.kubequeue_stand_in import Queue, queue_of_jobs, queue_of_pytorch_jobs
from tests.controlplane.kinds.operator_world import OperatorWorld, world
from tests.controlplane.kinds.trainingoperator.trainingoperator_jobs import PyTorchJobs
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import ControlPlane

pytestmark = pytest.mark.long


@pytest.mark.brief
async def test_a_job_is_its_queues_until_it_is_admitted_and_after_it_was_preempted(
    plane: ControlPlane, api: Api, namespace: Namespace, tmp_path: Path
) -> None:
    """In between, a reclaim suspends and resumes it like a job without a queue, and so does a person."""
    await _through_its_queue(plane, queue_of_jobs(BatchJobs(api, namespace)), tmp_path)


async def test_a_pytorchjob_is_its_queues_until_it_is_admitted_and_after_it_was_preempted(
    plane: ControlPlane, pytorch: PyTorchJobs, tmp_path: Path
) -> None:
    await _through_its_queue(plane, queue_of_pytorch_jobs(pytorch), tmp_path)


async def _through_its_queue(plane: ControlPlane, queue: Queue[Any], tmp_path: Path) -> None:
    jobs = queue.jobs
    await jobs.nodes(2)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await queue.submit("j", 2)
        held = await one.decided("j", "Queued")
        assert held["status"]["decision"]["reason"] == "The job waits in its queue (KubeQueue)."
        await queue.admit("j")
        await _runs(one, run=1)
        noticed = await one.node_of("j", "worker-1")
        await one.stop("j", [noticed])
        await one.withdraw([noticed])
        await _runs(one, run=2)
        rank_zero = await one.train("j", "worker-0")
        await queue.preempt("j")
        directive = await rank_zero.lines.matching(type="directive", directive="STOP")
        await rank_zero.reports("left", directive)
        await one.decided("j", "Queued")
        await jobs.has_pods("j")
        await queue.admit("j")
        await _runs(one, run=3)
        assert await jobs.retries("j") == 0
        await jobs.suspend("j")
        await one.released("j")


async def _runs(one: OperatorWorld[Any], run: int) -> None:
    await one.jobs.runs("j", 2)
    await one.decided("j", "Running", run=run, workers=2)
