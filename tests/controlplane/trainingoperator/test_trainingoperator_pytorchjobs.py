"""PyTorchJobs through reclaims, by a supervisor's process with its own rights, under the real training-operator."""

from pathlib import Path

import pytest

from supervisor.jobs.pytorchjob.kind import PyTorchJobKind
from tests.controlplane.operator_world import world
from tests.controlplane.operators import documented_jobs
from tests.controlplane.trainingoperator.trainingoperator_jobs import MANAGED, ROUNDS, ReplicatedJobs
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.running import ControlPlane

pytestmark = pytest.mark.long


async def test_the_documented_jobs_are_valid(pytorch: ReplicatedJobs, api: Api) -> None:
    assert await documented_jobs(api, PyTorchJobKind(), pytorch.namespace) == [(2, 4), (2, 4)]


@pytest.mark.brief
@pytest.mark.parametrize("restart_policy", ["OnFailure", "Never"])
async def test_a_job_that_cannot_leave_a_host_out_stops_and_resumes_smaller(
    plane: ControlPlane, pytorch: ReplicatedJobs, tmp_path: Path, restart_policy: str
) -> None:
    """Although its minimum would be left: c10d would lose steps. It grows with its next resume, and no pod fails."""
    await pytorch.nodes(3)
    elastic = {"rdzvBackend": "c10d", "minReplicas": 2, "maxReplicas": 3}
    async with world(plane, pytorch, tmp_path / "supervisor") as one:
        await pytorch.submit("j", 3, restart_policy=restart_policy, elastic=elastic)
        await pytorch.runs("j", 3)
        await one.decided("j", "Running", run=1, workers=3)
        noticed = await one.node_of("j", "worker-1")
        await one.stop("j", [noticed])
        assert (await pytorch.conditions("j"))["Suspended"]
        await pytorch.runs("j", 2)
        smaller = await one.decided("j", "Running", run=2, workers=2)
        assert smaller["spec"]["requestedWorkers"] == 3
        assert not (await pytorch.conditions("j")).get("Failed")
        assert not (await pytorch.conditions("j")).get("Restarting")


async def test_ten_reclaims_in_a_row_burn_no_retry(
    plane: ControlPlane, pytorch: ReplicatedJobs, tmp_path: Path
) -> None:
    """A job of a fixed size, of which any failed pod would be the end."""
    await pytorch.nodes(2)
    async with world(plane, pytorch, tmp_path / "supervisor") as one:
        await pytorch.submit("j", 2, restart_policy="Never")
        for run in range(1, 11):
            await pytorch.runs("j", 2)
            await one.decided("j", "Running", run=run, workers=2)
            noticed = await one.node_of("j", "worker-1")
            await one.stop("j", [noticed])
            await one.withdraw([noticed])
        await pytorch.runs("j", 2)
        await one.decided("j", "Running", run=11)
        assert (await pytorch.get("j"))["metadata"]["annotations"] == MANAGED
        conditions = await pytorch.conditions("j")
        assert not conditions.get("Failed")
        assert not conditions.get("Restarting")


@pytest.mark.brief
async def test_a_member_of_the_rendezvous_is_left_out_and_replaced(
    plane: ControlPlane, pytorch: ReplicatedJobs, tmp_path: Path
) -> None:
    """Its pod stays until its node goes; the operator then makes another one, and no other pod is touched."""
    await pytorch.nodes(4)
    async with world(plane, pytorch, tmp_path / "supervisor") as one:
        await pytorch.submit("j", 3, elastic=ROUNDS)
        before = await pytorch.runs("j", 3)
        await one.decided("j", "Running", workers=3)
        noticed = await one.node_of("j", "worker-1")
        await one.notice([noticed], left=10)
        await one.decided("j", "Running", workers=2)
        await one.decided("j", "Running", workers=3)
        after = await pytorch.runs("j", 3)
        kept = ["worker-0", "worker-2"]
        assert [after[name]["metadata"]["uid"] for name in kept] == [before[name]["metadata"]["uid"] for name in kept]
        assert await one.node_of("j", "worker-1") != noticed
