"""TFJobs through reclaims, by a supervisor's process with its own rights, under the real training-operator."""

from pathlib import Path

import pytest

from tests.controlplane.kinds.kind_jobs import MANAGED, MIN_WORKERS
from tests.controlplane.kinds.operator_world import world
from tests.controlplane.kinds.trainingoperator.trainingoperator_jobs import TfJobs
from tests.testkit.controlplane.running import ControlPlane

pytestmark = pytest.mark.long

_ELASTIC = {**MANAGED, MIN_WORKERS: "1"}


@pytest.mark.brief
async def test_a_notice_on_a_parameter_server_stops_the_job_which_resumes_smaller(
    plane: ControlPlane, tensorflow: TfJobs, tmp_path: Path
) -> None:
    """The operator would fail it as soon as the pod goes."""
    await tensorflow.nodes(3)
    async with world(plane, tensorflow, tmp_path / "supervisor") as one:
        await tensorflow.submit("j", 2, servers=1, annotations=_ELASTIC)
        await tensorflow.runs("j", 2, servers=1)
        await one.decided("j", "Running", run=1, workers=3)
        noticed = await one.node_of("j", "ps-0")
        await one.stop("j", [noticed])
        await tensorflow.runs("j", 1, servers=1)
        await one.decided("j", "Running", run=2, workers=2)
        conditions = await tensorflow.conditions("j")
        assert not conditions.get("Failed")
        assert not conditions.get("Restarting")
