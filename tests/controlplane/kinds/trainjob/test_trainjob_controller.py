"""What TrainJobs do that other kinds do not, under their real controllers."""

from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.kinds.operator_world import OperatorWorld, world
from tests.controlplane.kinds.trainjob.trainjob_jobs import NO_RUNTIME, TrainJobs
from tests.testkit.controlplane.api import ObjectRefused
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import until

pytestmark = pytest.mark.long


async def test_a_pod_that_is_deleted_fails_the_job(jobs: TrainJobs) -> None:
    """The control run: what a reclaim does to a TrainJob that nobody suspends."""
    await jobs.nodes(2)
    await jobs.submit_workers("j", 2, {})
    pods = await jobs.runs("j", 2)
    await jobs.delete_pod(pods["worker-1"])
    assert await jobs.ended("j") == "FailedJobs"


async def test_a_jobset_that_is_suspended_by_itself_starts_again_at_once(jobs: TrainJobs) -> None:
    """The other control run: the controller takes it back, so that the nodes that go get new pods."""
    await jobs.nodes(2)
    await jobs.submit_workers("j", 2, {})
    before = _uids(await jobs.runs("j", 2))
    await jobs.jobsets.suspend("j")

    async def others_run() -> bool:
        return before.isdisjoint(_uids(await jobs.runs("j", 2)))

    await until(others_run, "the JobSet has made all pods anew")


@pytest.mark.brief
async def test_its_jobset_is_no_job_of_its_own_and_what_prepares_it_is_no_part_of_the_run(
    plane: ControlPlane, jobs: TrainJobs, tmp_path: Path
) -> None:
    """Its pods speak for the TrainJob, whose uid none of them has."""
    await jobs.nodes(2)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await jobs.define_runtime("j", prepared=True)
        await jobs.train("j", 2)
        preparation = await jobs.run("j", "dataset-initializer-0")
        await jobs.end(preparation["dataset-initializer-0"], "Succeeded")
        await jobs.runs("j", 2)
        first = await one.decided("j", "Running", run=1, workers=2)
        assert set(first["status"]["hosts"]["workers"]) == {"j-node-0-0", "j-node-0-1"}
        await _stopped_and_resumed(one, run=2)
        assert await jobs.retries("j") == 0
        assert await one.names() == {"trainjob.j"}


async def test_a_jobset_of_the_same_name_is_another_job(plane: ControlPlane, jobs: TrainJobs, tmp_path: Path) -> None:
    """The controller makes none then, so the TrainJob has no run, and the pods of the other one do not speak for it."""
    await jobs.nodes(1)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await jobs.jobsets.submit_workers("j", 1)
        await jobs.run("j", "worker-0")
        await jobs.submit_workers("j", 1)
        beside = OperatorWorld(one.here, jobs.jobsets, one.supervisor)
        await beside.decided("j", "Running", run=1, workers=1)
        await beside.train("j", "worker-0")
        assert await one.names() == {"jobset.j"}


async def test_another_number_of_nodes_starts_no_run(plane: ControlPlane, jobs: TrainJobs, tmp_path: Path) -> None:
    """The API server takes it, but the JobSet does not; the job runs again once it has its own number back."""
    await jobs.nodes(2)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await jobs.submit_workers("j", 2)
        await jobs.runs("j", 2)
        await one.decided("j", "Running", run=1, workers=2)
        noticed = await one.node_of("j", "worker-1")
        await one.stop("j", [noticed])
        await jobs.patch("j", {"spec": {"trainer": {"numNodes": 1}}})
        await one.withdraw([noticed])

        async def is_resumed() -> bool:
            return not (await jobs.conditions("j")).get("Suspended", True)

        await until(is_resumed, "the TrainJob says that it is resumed")
        assert (await jobs.jobsets.get("j"))["spec"]["suspend"]
        await jobs.patch("j", {"spec": {"trainer": {"numNodes": 2}}})
        await jobs.runs("j", 2)
        await one.decided("j", "Running", run=2, workers=2)


async def test_a_changed_runtime_keeps_the_jobset_from_being_suspended(
    plane: ControlPlane, jobs: TrainJobs, tmp_path: Path
) -> None:
    """The TrainJob says that it is suspended, which nothing is yet; the JobSet takes no other template."""
    await jobs.nodes(2)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await jobs.submit_workers("j", 2)
        before = _uids(await jobs.runs("j", 2))
        await one.decided("j", "Running", run=1, workers=2)
        await jobs.change_runtime("j", "other")
        await _told_to_stop(one, "j")

        async def says_suspended() -> bool:
            return (await jobs.conditions("j")).get("Suspended", False)

        await until(says_suspended, "the TrainJob says that it is suspended")
        status = (await one.supervised("j"))["status"]
        assert status["observed"].get("applied", 0) < status["decision"]["generation"]
        assert _uids(await jobs.runs("j", 2)) == before
        await jobs.change_runtime("j", "none")
        await jobs.annotate("j", max_wait_time="60")
        await one.decided("j", "Suspended")
        await jobs.has_pods("j")


async def test_a_runtime_that_is_gone_holds_up_no_other_job(
    plane: ControlPlane, jobs: TrainJobs, tmp_path: Path
) -> None:
    """Without it nothing on the TrainJob can be changed; once it is back, the job is suspended."""
    await jobs.nodes(2)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        for name in ("j", "k"):
            await jobs.submit_workers(name, 1)
            await jobs.runs(name, 1)
            await one.decided(name, "Running", run=1, workers=1)
        await jobs.delete_runtime("j")

        async def is_refused() -> bool:
            try:
                await jobs.annotate("j", max_wait_time="60")
            except ObjectRefused:
                return True
            return False

        await until(is_refused, "no change of the TrainJob is accepted")
        await _told_to_stop(one, "j")
        await _told_to_stop(one, "k")
        await one.decided("k", "Suspended")
        await jobs.has_pods("k")
        assert not (await jobs.get("j"))["spec"]["suspend"]
        await jobs.define_runtime("j")
        await one.decided("j", "Suspended")
        await jobs.has_pods("j")


async def test_a_runtime_that_never_was_is_refused(jobs: TrainJobs) -> None:
    """So that a TrainJob without one is not even there."""
    with pytest.raises(ObjectRefused, match=NO_RUNTIME):
        await jobs.create(jobs.manifest("j", 1))


async def _stopped_and_resumed(one: OperatorWorld[TrainJobs], run: int) -> None:
    noticed = await one.node_of("j", "worker-1")
    await one.stop("j", [noticed])
    await one.withdraw([noticed])
    await one.jobs.runs("j", 2)
    await one.decided("j", "Running", run=run, workers=2)


async def _told_to_stop(one: OperatorWorld[TrainJobs], name: str) -> None:
    """The node of the last worker will be reclaimed, and the first one has saved."""
    pods = sorted(await one.jobs.pods(name))
    rank_zero = await one.train(name, pods[0])
    await one.notice([await one.node_of(name, pods[-1])])
    directive = await rank_zero.lines.matching(type="directive", directive="STOP")
    await rank_zero.reports("left", directive)


def _uids(pods: Any) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods.values()}
