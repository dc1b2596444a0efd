"""One control plane per process serves the jobs of all kinds. A controller starts with the first test that needs it."""

from collections.abc import Iterator

import pytest

from tests.controlplane.kinds.jobset.jobset_controller import jobset_controller
from tests.controlplane.kinds.mpijob.mpijob_operator import mpi_operator
from tests.controlplane.kinds.trainingoperator.trainingoperator_jobs import PyTorchJobs, TfJobs
from tests.controlplane.kinds.trainingoperator.trainingoperator_process import training_operator
from tests.controlplane.kinds.trainjob.trainer_controller import trainer_controller
from tests.controlplane.kinds.volcano.volcano_controllers import volcano
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import ControlPlane, RunningCluster


@pytest.fixture(scope="session")
def cluster(plane: ControlPlane) -> RunningCluster:
    """The control plane of all kinds, in place of the one that other tests share."""
    return plane.cluster


@pytest.fixture(scope="session")
def _mpi_operator(cluster: RunningCluster) -> Iterator[None]:
    with mpi_operator(cluster):
        yield


@pytest.fixture(scope="session")
def _training_operator(cluster: RunningCluster) -> Iterator[None]:
    with training_operator(cluster, "pytorchjob", "tfjob"):
        yield


@pytest.fixture(scope="session")
def _jobset_controller(cluster: RunningCluster) -> Iterator[None]:
    with jobset_controller(cluster):
        yield


@pytest.fixture(scope="session")
def _volcano(cluster: RunningCluster) -> Iterator[None]:
    with volcano(cluster):
        yield


@pytest.fixture(scope="session")
def _trainer(cluster: RunningCluster, _jobset_controller: None) -> Iterator[None]:
    with trainer_controller(cluster):
        yield


@pytest.fixture
def pytorch(_training_operator: None, api: Api, namespace: Namespace) -> PyTorchJobs:
    """The PyTorchJobs of the test's namespace, which has no node yet."""
    return PyTorchJobs(api, namespace)


@pytest.fixture
def tensorflow(_training_operator: None, api: Api, namespace: Namespace) -> TfJobs:
    """The TFJobs of the test's namespace, which has no node yet."""
    return TfJobs(api, namespace)
