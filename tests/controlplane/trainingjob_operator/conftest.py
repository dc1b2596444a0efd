import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane.etoperator.etoperator_jobs import TrainingJobs
from tests.controlplane.operators import free_port, plane_of_running_pods
from tests.controlplane.trainingjob_operator.trainingjob_operator_process import defined, operating, ready
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import ControlPlane, RunningCluster


@pytest.fixture(scope="session")
def plane(programs: Mapping[BinaryProgram, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of this process, with our operator."""
    port = free_port()
    with plane_of_running_pods(programs, tmp_path_factory.mktemp("trainingjobs")) as running:
        asyncio.run(defined(running.cluster))
        with operating(running.cluster, port):
            asyncio.run(ready(port))
            yield running


@pytest.fixture(scope="session")
def cluster(plane: ControlPlane) -> RunningCluster:
    """This one instead of the control plane that other tests share."""
    return plane.cluster


@pytest.fixture
def jobs(api: Api, namespace: Namespace, tmp_path: Path) -> TrainingJobs:
    """The jobs of the test's namespace, which has no node yet."""
    edl = tmp_path / "edl"
    edl.mkdir()
    return TrainingJobs(api, namespace, edl)
