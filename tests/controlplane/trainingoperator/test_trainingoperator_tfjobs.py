"""TFJobs through reclaims, by a supervisor's process with its own rights, under the real training-operator."""

from pathlib import Path

import pytest

from supervisor.jobs.tfjob.kind import TfJobKind
from tests.controlplane.operator_world import world
from tests.controlplane.operators import documented_jobs
from tests.controlplane.trainingoperator.trainingoperator_jobs import MANAGED, PREFIX, ReplicatedJobs
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.running import ControlPlane

pytestmark = pytest.mark.long

_ELASTIC = {**MANAGED, f"{PREFIX}min-workers": "1"}


async def test_the_documented_jobs_are_valid(tensorflow: ReplicatedJobs, api: Api) -> None:
    assert await documented_jobs(api, TfJobKind(), tensorflow.namespace) == [(2, 4), (2, 4)]


@pytest.mark.brief
@pytest.mark.parametrize("lost", ["worker-1", "ps-0"])
async def test_any_notice_stops_the_job_which_resumes_smaller(
    plane: ControlPlane, tensorflow: ReplicatedJobs, tmp_path: Path, lost: str
) -> None:
    """The operator would fail it as soon as a pod goes, be it a worker or a parameter server."""
    await tensorflow.nodes(3)
    async with world(plane, tensorflow, tmp_path / "supervisor") as one:
        await tensorflow.submit("j", 2, servers=1, annotations=_ELASTIC)
        await tensorflow.runs("j", 2, servers=1)
        await one.decided("j", "Running", run=1, workers=3)
        noticed = await one.node_of("j", lost)
        await one.stop("j", [noticed])
        await tensorflow.runs("j", 1, servers=1)
        await one.decided("j", "Running", run=2, workers=2)
        conditions = await tensorflow.conditions("j")
        assert not conditions.get("Failed")
        assert not conditions.get("Restarting")


async def test_ten_reclaims_in_a_row_burn_no_retry(
    plane: ControlPlane, tensorflow: ReplicatedJobs, tmp_path: Path
) -> None:
    await tensorflow.nodes(3)
    async with world(plane, tensorflow, tmp_path / "supervisor") as one:
        await tensorflow.submit("j", 2, servers=1)
        for run in range(1, 11):
            await tensorflow.runs("j", 2, servers=1)
            await one.decided("j", "Running", run=run, workers=3)
            noticed = await one.node_of("j", "worker-1")
            await one.stop("j", [noticed])
            await one.withdraw([noticed])
        await tensorflow.runs("j", 2, servers=1)
        await one.decided("j", "Running", run=11)
        assert (await tensorflow.get("j"))["metadata"]["annotations"] == MANAGED
        assert not (await tensorflow.conditions("j")).get("Failed")
