"""PyTorchJobs through reclaims, by a supervisor's process with its own rights, under the real training-operator."""

from pathlib import Path

import pytest

from tests.controlplane.kinds.operator_world import world
from tests.controlplane.kinds.trainingoperator.trainingoperator_jobs import ROUNDS, PyTorchJobs
from tests.testkit.controlplane.running import ControlPlane

pytestmark = pytest.mark.long


async def test_a_job_that_cannot_leave_a_host_out_stops_and_resumes_smaller(
    plane: ControlPlane, pytorch: PyTorchJobs, tmp_path: Path
) -> None:
    """Although its minimum would be left: c10d would lose steps. It grows with its next resume, and no pod fails."""
    await pytorch.nodes(3)
    elastic = {"rdzvBackend": "c10d", "minReplicas": 2, "maxReplicas": 3}
    async with world(plane, pytorch, tmp_path / "supervisor") as one:
        await pytorch.submit("j", 3, elastic=elastic)
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


async def test_a_member_of_the_rendezvous_is_left_out_and_replaced(
    plane: ControlPlane, pytorch: PyTorchJobs, tmp_path: Path
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
