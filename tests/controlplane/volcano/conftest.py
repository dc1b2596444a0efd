from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane.operators import built, plane_of_running_pods
from tests.controlplane.volcano.volcano_controllers import NAME, PROGRAMS, volcano
from tests.controlplane.volcano.volcano_jobs import VolcanoJobs
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import ControlPlane, RunningCluster


@pytest.fixture(scope="session")
def plane(programs: Mapping[BinaryProgram, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of this process, with Volcano."""
    controllers = {name: built(NAME, name) for name in PROGRAMS}
    with (
        plane_of_running_pods(programs, tmp_path_factory.mktemp(NAME)) as running,
        volcano(controllers, running.cluster),
    ):
        yield running


@pytest.fixture(scope="session")
def cluster(plane: ControlPlane) -> RunningCluster:
    """This one instead of the control plane that other tests share."""
    return plane.cluster


@pytest.fixture
def jobs(api: Api, namespace: Namespace) -> VolcanoJobs:
    """The jobs of the test's namespace, which has no node yet."""
    return VolcanoJobs(api, namespace)
