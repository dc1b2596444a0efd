from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane.mpijob.mpijob_jobs import MpiJobs
from tests.controlplane.mpijob.mpijob_operator import NAME, operating
from tests.controlplane.operators import built, plane_of_running_pods
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.binaries import BinaryProgram, OperatorBinary
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import ControlPlane, RunningCluster


@pytest.fixture(scope="session")
def mpi_operator() -> OperatorBinary:
    return built(NAME)


@pytest.fixture(scope="session")
def plane(
    programs: Mapping[BinaryProgram, Path], mpi_operator: OperatorBinary, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """A control plane of this process, with the operator."""
    with (
        plane_of_running_pods(programs, tmp_path_factory.mktemp("mpijob")) as running,
        operating(mpi_operator, running.cluster),
    ):
        yield running


@pytest.fixture(scope="session")
def cluster(plane: ControlPlane) -> RunningCluster:
    """This one instead of the control plane that other tests share."""
    return plane.cluster


@pytest.fixture
def jobs(api: Api, namespace: Namespace) -> MpiJobs:
    """The jobs of the test's namespace, which has no node yet."""
    return MpiJobs(api, namespace)
