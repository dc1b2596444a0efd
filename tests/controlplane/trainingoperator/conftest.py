from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane.operators import built, plane_of_running_pods
from tests.controlplane.trainingoperator.trainingoperator_jobs import PyTorchJobs, TfJobs
from tests.controlplane.trainingoperator.trainingoperator_process import NAME, operating
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.binaries import BinaryProgram, OperatorBinary
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import ControlPlane, RunningCluster


@pytest.fixture(scope="session")
def training_operator() -> OperatorBinary:
    return built(NAME)


@pytest.fixture(scope="session")
def plane(
    programs: Mapping[BinaryProgram, Path], training_operator: OperatorBinary, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """A control plane of this process, with the operator."""
    with (
        plane_of_running_pods(programs, tmp_path_factory.mktemp("trainingoperator")) as running,
        operating(training_operator, running.cluster, "pytorchjob", "tfjob"),
    ):
        yield running


@pytest.fixture(scope="session")
def cluster(plane: ControlPlane) -> RunningCluster:
    """This one instead of the control plane that other tests share."""
    return plane.cluster


@pytest.fixture
def pytorch(api: Api, namespace: Namespace) -> PyTorchJobs:
    """The PyTorchJobs of the test's namespace, which has no node yet."""
    return PyTorchJobs(api, namespace)


@pytest.fixture
def tensorflow(api: Api, namespace: Namespace) -> TfJobs:
    """The TFJobs of the test's namespace, which has no node yet."""
    return TfJobs(api, namespace)
