from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane.batchjob.batchjob_jobs import BatchJobs
from tests.controlplane.operators import plane_of_running_pods
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import ControlPlane, RunningCluster


@pytest.fixture(scope="session")
def plane(programs: Mapping[BinaryProgram, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of this process, whose own controller makes the pods."""
    with plane_of_running_pods(programs, tmp_path_factory.mktemp("batchjob")) as running:
        yield running


@pytest.fixture(scope="session")
def cluster(plane: ControlPlane) -> RunningCluster:
    """This one instead of the control plane that other tests share."""
    return plane.cluster


@pytest.fixture
def jobs(api: Api, namespace: Namespace) -> BatchJobs:
    """The jobs of the test's namespace, which has no node yet."""
    return BatchJobs(api, namespace)
