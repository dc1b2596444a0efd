from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane.operators import built, plane_of_running_pods
from tests.controlplane.trainingoperator.trainingoperator_process import NAME, operating
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.running import ControlPlane, RunningCluster


@pytest.fixture(scope="session")
def plane(programs: Mapping[BinaryProgram, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of this process, with an operator whose jobs a queue holds back."""
    operator = built(NAME)
    with (
        plane_of_running_pods(programs, tmp_path_factory.mktemp("kubequeue")) as running,
        operating(operator, running.cluster, "pytorchjob"),
    ):
        yield running


@pytest.fixture(scope="session")
def cluster(plane: ControlPlane) -> RunningCluster:
    """This one instead of the control plane that other tests share."""
    return plane.cluster
