"""Tests that hold for JobSets whose pods are restarted in place, and for jobs whose controllers make such JobSets.

No container runs here: a test says of each pod what JobSet's agent in it would say. A suite has a class of this, and
fixtures `plane` and `jobs`, with two nodes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.kinds.jobset.jobset_jobs import JobSets
from tests.controlplane.kinds.kind_jobs import runs
from tests.controlplane.kinds.operator_world import OperatorWorld, world
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import until

_WORKERS = ("worker-0", "worker-1")


class InPlaceContract:
    """What the supervisor makes of restarts in place."""

    async def test_each_start_of_its_pods_uses_a_restart_unless_the_supervisor_resumes_it(self, jobs: JobSets) -> None:
        """The control run: what a resume costs a JobSet that a person suspends and resumes."""
        await jobs.submit_in_place("j", 2, restarts=1)
        for attempt in range(2):
            await _train(jobs, attempt)
            await jobs.suspend("j")
            await jobs.has_pods("j")
            await jobs.resume("j")
        await jobs.runs("j", 2)
        await jobs.start_containers("j", *_WORKERS)
        assert await jobs.ended("j") == "ReachedMaxRestarts"

    async def test_ten_reclaims_use_no_restart(self, plane: ControlPlane, jobs: JobSets, tmp_path: Path) -> None:
        """It resumes with new pods, whose first attempt is again the first one."""
        await jobs.submit_in_place("j", 2, restarts=0)
        async with world(plane, jobs, tmp_path / "supervisor") as one:
            await _train(jobs, 0)
            for run in range(1, 11):
                await one.decided("j", "Running", run=run, workers=2)
                noticed = await one.node_of("j", "worker-1")
                await one.stop("j", [noticed])
                await one.withdraw([noticed])
                await _train(jobs, 0)
            await one.decided("j", "Running", run=11, workers=2)
            assert await jobs.retries("j") == 0
            assert "Failed" not in await jobs.conditions("j")

    @pytest.mark.brief
    async def test_a_restart_in_place_is_another_run_of_the_same_pods(
        self, plane: ControlPlane, jobs: JobSets, tmp_path: Path
    ) -> None:
        """There is no run from the restart of the first pod until all of them have restarted."""
        await jobs.submit_in_place("j", 2, restarts=3)
        async with world(plane, jobs, tmp_path / "supervisor") as one:
            await _train(jobs, 0)
            await one.decided("j", "Running", run=1, workers=2)
            before = _uids(await jobs.pods("j"))
            await jobs.start_containers("j", "worker-1")
            await _is_between_runs(one)
            await jobs.start_containers("j", "worker-0")
            await jobs.attempts("j", 1)
            await one.decided("j", "Running", run=2, workers=2)
            assert _uids(await jobs.pods("j")) == before
            assert await jobs.retries("j") == 0

    async def test_a_pod_that_is_lost_is_replaced_and_the_others_stay(
        self, plane: ControlPlane, jobs: JobSets, tmp_path: Path
    ) -> None:
        """The others restart in place once the new pod has started. A lost pod ends no Job, so no Job is made anew."""
        await jobs.submit_in_place("j", 2, restarts=1)
        async with world(plane, jobs, tmp_path / "supervisor", lost_grace_seconds=60.0) as one:
            await _train(jobs, 0)
            await one.decided("j", "Running", run=1, workers=2)
            before = await jobs.pods("j")
            await jobs.delete_pod(before["worker-1"])
            lost = before["worker-1"]["metadata"]["uid"]
            await jobs.has_pods("j", *_WORKERS, condition=lambda pod: runs(pod) and pod["metadata"]["uid"] != lost)
            await jobs.start_containers("j", "worker-1")
            await _is_between_runs(one)
            await jobs.start_containers("j", "worker-0")
            await jobs.attempts("j", 1)
            await one.decided("j", "Running", run=2, workers=2)
            assert (await jobs.pods("j"))["worker-0"]["metadata"]["uid"] == before["worker-0"]["metadata"]["uid"]
            assert await jobs.retries("j") == 0

    async def test_a_stop_after_a_restart_in_place_suspends_and_resumes_it(
        self, plane: ControlPlane, jobs: JobSets, tmp_path: Path
    ) -> None:
        """Its restart counts no more once new pods have started."""
        await jobs.submit_in_place("j", 2, restarts=1)
        async with world(plane, jobs, tmp_path / "supervisor") as one:
            await _train(jobs, 0)
            await one.decided("j", "Running", run=1, workers=2)
            await jobs.start_containers("j", *_WORKERS)
            await jobs.attempts("j", 1)
            await one.decided("j", "Running", run=2, workers=2)
            noticed = await one.node_of("j", "worker-1")
            await one.stop("j", [noticed])
            await one.withdraw([noticed])
            await _train(jobs, 0)
            await one.decided("j", "Running", run=3, workers=2)
            await jobs.start_containers("j", *_WORKERS)
            await jobs.attempts("j", 1)
            await one.decided("j", "Running", run=4, workers=2)


async def _train(jobs: JobSets, attempt: int) -> None:
    """Returns once new pods run and may train in that attempt."""
    await jobs.runs("j", 2)
    await jobs.start_containers("j", *_WORKERS)
    await jobs.attempts("j", attempt)


async def _is_between_runs(one: OperatorWorld[JobSets]) -> None:
    async def between() -> bool:
        observed = (await one.supervised("j"))["status"]["observed"]
        return not observed.get("running", False)

    await until(between, "no run is observed")


def _uids(pods: Mapping[str, Any]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods.values()}
