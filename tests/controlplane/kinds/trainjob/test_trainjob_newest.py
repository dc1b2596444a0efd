"""TrainJobs under the newest controllers: what holds for every kind, and restarts in place, which older ones refuse."""

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.kinds.jobset.jobset_controller import in_place_controller
from tests.controlplane.kinds.jobset.jobset_in_place import InPlaceContract
from tests.controlplane.kinds.kind_jobs import MANAGED
from tests.controlplane.kinds.kind_support import TRAIN_JOB
from tests.controlplane.kinds.operator_world import world
from tests.controlplane.kinds.trainjob.trainer_controller import newest_trainer_controller
from tests.controlplane.kinds.trainjob.trainjob_contract import TrainJobContract
from tests.controlplane.kinds.trainjob.trainjob_jobs import TrainJobs
from tests.testkit.controlplane.api import client
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.namespace import fresh_namespace
from tests.testkit.controlplane.running import ControlPlane, running
from tests.testkit.yaml_text import documents

pytestmark = pytest.mark.long
_STAGES = Path(__file__).parents[2] / "pod_stages.yaml"
_ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def plane(programs: Mapping[BinaryProgram, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of its own, as other versions of the controllers may not see the same jobs."""
    stages = {BinaryProgram.KWOK: {"config": _STAGES}}
    with (
        running(programs, tmp_path_factory.mktemp("newest"), stages) as plane,
        in_place_controller(plane.cluster),
        newest_trainer_controller(plane.cluster),
    ):
        yield plane


@pytest.fixture
async def jobs(plane: ControlPlane) -> AsyncIterator[TrainJobs]:
    """The jobs of the test's namespace, which has no node yet."""
    async with client(plane.cluster) as api, fresh_namespace(plane.cluster, api) as namespace:
        yield TrainJobs(api, namespace)


def _yaml_of_page() -> Iterator[Any]:
    page = (_ROOT / "docs" / "kinds" / "trainjob.md").read_text(encoding="utf-8")
    for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL):
        yield from documents(text)


class TestNewestTrainJobs(TrainJobContract):
    support = TRAIN_JOB


async def test_a_patch_of_its_runtime_opts_it_in(plane: ControlPlane, jobs: TrainJobs, tmp_path: Path) -> None:
    """As its page writes it; neither the runtime nor the TrainJob itself has an annotation of ours."""
    [[patch]] = [each["spec"]["runtimePatches"] for each in _yaml_of_page() if "runtimePatches" in each["spec"]]
    manifest = jobs.manifest("j", 2, {})
    manifest["spec"]["runtimePatches"] = [patch]
    await jobs.nodes(2)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await jobs.define_runtime("j", opted_in=False)
        await jobs.accepted(manifest)
        pods = await jobs.runs("j", 2)
        assert all(pod["metadata"]["annotations"].items() >= MANAGED.items() for pod in pods.values())
        await one.decided("j", "Running", run=1, workers=2)
        noticed = await one.node_of("j", "worker-1")
        await one.stop("j", [noticed])
        await one.withdraw([noticed])
        await jobs.runs("j", 2)
        await one.decided("j", "Running", run=2, workers=2)


async def test_a_changed_runtime_keeps_no_job_from_being_suspended(
    plane: ControlPlane, jobs: TrainJobs, tmp_path: Path
) -> None:
    """It does under older controllers, which cannot apply the spec of its JobSet then."""
    await jobs.nodes(2)
    async with world(plane, jobs, tmp_path / "supervisor") as one:
        await jobs.submit_workers("j", 2)
        await jobs.runs("j", 2)
        await one.decided("j", "Running", run=1, workers=2)
        await jobs.change_runtime("j", "other")
        noticed = await one.node_of("j", "worker-1")
        await one.stop("j", [noticed])
        await one.withdraw([noticed])
        await jobs.runs("j", 2)
        await one.decided("j", "Running", run=2, workers=2)


class TestTrainJobsInPlace(InPlaceContract):
    @pytest.fixture
    async def jobs(self, jobs: TrainJobs) -> TrainJobs:
        """They have two nodes."""
        await jobs.nodes(2)
        return jobs
