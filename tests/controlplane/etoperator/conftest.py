from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane.etoperator.etoperator_jobs import TrainingJobs
from tests.controlplane.operator.operator_jobs import defined, operating
from tests.controlplane.operators import plane_of_running_pods
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import ControlPlane, RunningCluster


@pytest.fixture(scope="session")
def plane(programs: Mapping[BinaryProgram, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of this process."""
    with plane_of_running_pods(programs, tmp_path_factory.mktemp("etoperator")) as running:
        yield running


@pytest.fixture(scope="session")
def cluster(plane: ControlPlane) -> RunningCluster:
    """This one instead of the control plane that other tests share."""
    return plane.cluster


@pytest.fixture
async def jobs(cluster: RunningCluster, api: Api, namespace: Namespace, tmp_path: Path) -> AsyncIterator[TrainingJobs]:
    """The jobs of the test's namespace, which has no node yet, and the stand-in for their operator."""
    await defined(cluster)
    edl = tmp_path / "edl"
    edl.mkdir()
    async with operating(cluster, namespace.name):
        yield TrainingJobs(api, namespace, edl)
