"""A PyTorchJob in real pods on a real node: it goes on without a host, stops, and resumes, and loses no step."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.frameworks.frameworks_installation import FrameworksNotInstallable, installed
from tests.node.node_pytorch import WORKERS, PyTorchJob, installed_sdk
from tests.node.node_world import NodeWorld

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600), pytest.mark.long]
_LEAD_SECONDS = 60


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        installed()
    except FrameworksNotInstallable as reason:
        pytest.skip(str(reason))
    return installed_sdk(tmp_path_factory.mktemp("sdk"))


@pytest_asyncio.fixture(loop_scope="session")
async def job(here: NodeWorld, sdk: Path, _training_operator: None) -> AsyncIterator[PyTorchJob]:
    """A job of three workers that can go on with two."""
    one = PyTorchJob(here, "resnet", here.home("resnet"))
    await one.submit(sdk)
    yield one
    await one.delete()


async def test_a_job_shrinks_stops_resumes_and_loses_no_step(job: PyTorchJob) -> None:
    """Each step is made once, by three ranks, by two, and by three again; torchrun counts no restart."""
    before = await job.trains(WORKERS)
    await job.drill(2, _LEAD_SECONDS)
    smaller = await job.trains(WORKERS - 1, before.step)
    await job.drill(1, _LEAD_SECONDS)
    await job.decided("Suspended")
    await job.has_pods(0)
    [*_, last] = [each.step for each in await job.steps() if each.rank == 0]
    again = await job.trains(WORKERS, last)
    await job.end(again.step + 20)
    steps = [each for each in await job.steps() if each.rank == 0]
    assert [each.step for each in steps] == list(range(again.step + 20))
    assert {each.restarts for each in steps} == {0}
    assert smaller.step > before.step
