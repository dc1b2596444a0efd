"""A supervisor of Indexed Jobs alone, which may read no job of another kind."""

import json
from pathlib import Path

import pytest

from tests.controlplane.kinds.batchjob.batchjob_jobs import BatchJobs
from tests.controlplane.kinds.operator_world import world
from tests.testkit.controlplane.running import ControlPlane

pytestmark = pytest.mark.long


@pytest.mark.brief
async def test_one_kind_needs_the_rights_of_that_kind_alone(
    plane: ControlPlane, jobs: BatchJobs, tmp_path: Path
) -> None:
    """It goes through a reclaim, and nothing is asked of the API server that it refuses."""
    await jobs.nodes(2)
    async with world(plane, jobs, tmp_path / "supervisor", kinds=("batchjob",)) as one:
        await jobs.submit("j", 2)
        await jobs.runs("j", 2)
        await one.decided("j", "Running", run=1, workers=2)
        noticed = await one.node_of("j", "worker-1")
        await one.stop("j", [noticed])
        await one.withdraw([noticed])
        await jobs.runs("j", 2)
        await one.decided("j", "Running", run=2, workers=2)
    said = [json.loads(line) for line in (tmp_path / "supervisor" / "log").read_text().splitlines()]
    [supervised] = [each["kinds"] for each in said if each["event"] == "kinds.supervised"]
    assert supervised == ["batchjob"]
    assert "forbidden" not in (tmp_path / "supervisor" / "log").read_text()
