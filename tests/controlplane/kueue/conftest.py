from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.jobset.jobset_controller import NAME as JOBSET
from tests.controlplane.jobset.jobset_controller import jobset_controller
from tests.controlplane.kueue.kueue_controller import NAME, PINS, QUEUES_TRAIN_JOBS, queueing
from tests.controlplane.kueue.kueue_jobs import QueuedJobs, queued_jobs
from tests.controlplane.mpijob.mpijob_operator import NAME as MPI_OPERATOR
from tests.controlplane.mpijob.mpijob_operator import operating
from tests.controlplane.operators import built, plane_of_running_pods
from tests.controlplane.trainingoperator.trainingoperator_process import NAME as TRAINING_OPERATOR
from tests.controlplane.trainingoperator.trainingoperator_process import operating as training_operating
from tests.controlplane.trainjob.trainer_controller import NAME as TRAINER
from tests.controlplane.trainjob.trainer_controller import trainer_controller
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import ControlPlane, RunningCluster


@pytest.fixture(scope="session")
def plane(programs: Mapping[BinaryProgram, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of this process, with Kueue and the controllers whose jobs it queues."""
    with (
        plane_of_running_pods(programs, tmp_path_factory.mktemp(NAME)) as running,
        operating(built(MPI_OPERATOR), running.cluster),
        training_operating(built(TRAINING_OPERATOR), running.cluster, "pytorchjob", "tfjob"),
        jobset_controller(built(JOBSET), running.cluster),
        _trainer(running.cluster),
        queueing(built(PINS), running.cluster),
    ):
        yield running


def _trainer(cluster: RunningCluster) -> AbstractContextManager[None]:
    return trainer_controller(built(TRAINER), cluster) if QUEUES_TRAIN_JOBS else nullcontext()


@pytest.fixture(scope="session")
def cluster(plane: ControlPlane) -> RunningCluster:
    """This one instead of the control plane that other tests share."""
    return plane.cluster


@pytest.fixture
async def queued(request: pytest.FixtureRequest, api: Api, namespace: Namespace) -> QueuedJobs[Any]:
    """The jobs of the test's namespace, by default MPIJobs. It has a queue with a quota of three GPUs, and no node."""
    jobs = queued_jobs(getattr(request, "param", "mpijob"), api, namespace)
    await jobs.open(gpus=3)
    return jobs
