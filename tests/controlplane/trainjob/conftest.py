from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane.jobset import jobset_controller
from tests.controlplane.operators import built, plane_of_running_pods
from tests.controlplane.trainjob import trainer_controller
from tests.controlplane.trainjob.trainjob_jobs import TrainJobs
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import ControlPlane, RunningCluster


@pytest.fixture(scope="session")
def plane(programs: Mapping[BinaryProgram, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of this process, with the controllers of TrainJobs and of JobSets."""
    jobset, trainer = built(jobset_controller.NAME), built(trainer_controller.NAME)
    with (
        plane_of_running_pods(programs, tmp_path_factory.mktemp(trainer_controller.NAME)) as running,
        jobset_controller.jobset_controller(jobset, running.cluster),
        trainer_controller.trainer_controller(trainer, running.cluster),
    ):
        yield running


@pytest.fixture(scope="session")
def cluster(plane: ControlPlane) -> RunningCluster:
    """This one instead of the control plane that other tests share."""
    return plane.cluster


@pytest.fixture
def jobs(api: Api, namespace: Namespace) -> TrainJobs:
    """The TrainJobs of the test's namespace, which has no node yet."""
    return TrainJobs(api, namespace)
