from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane.batchjob.batchjob_jobs import BatchJobs
from tests.controlplane.kueue.kueue_controller import NAME, queueing
from tests.controlplane.kueue.kueue_jobs import QueuedJobs
from tests.controlplane.mpijob.mpijob_jobs import MpiJobs
from tests.controlplane.mpijob.mpijob_operator import NAME as MPI_OPERATOR
from tests.controlplane.mpijob.mpijob_operator import operating
from tests.controlplane.operators import built, plane_of_running_pods
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.binaries import Program
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import Cluster, ControlPlane


@pytest.fixture(scope="session")
def plane(programs: Mapping[Program, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of this process, with Kueue and an operator whose jobs it queues."""
    controllers = built(MPI_OPERATOR), built(NAME)
    with (
        plane_of_running_pods(programs, tmp_path_factory.mktemp(NAME)) as running,
        operating(controllers[0], running.cluster),
        queueing(controllers[1], running.cluster),
    ):
        yield running


@pytest.fixture(scope="session")
def cluster(plane: ControlPlane) -> Cluster:
    """This one instead of the control plane that other tests share."""
    return plane.cluster


@pytest.fixture
async def queued(api: Api, namespace: Namespace) -> QueuedJobs[MpiJobs]:
    """The MPIJobs of the test's namespace, which has a queue with a quota of three GPUs and no node yet."""
    jobs = QueuedJobs(api, MpiJobs(api, namespace))
    await jobs.open(gpus=3)
    return jobs


@pytest.fixture
async def queued_batch(api: Api, namespace: Namespace) -> QueuedJobs[BatchJobs]:
    """The Indexed Jobs of such a namespace."""
    jobs = QueuedJobs(api, BatchJobs(api, namespace))
    await jobs.open(gpus=3)
    return jobs
