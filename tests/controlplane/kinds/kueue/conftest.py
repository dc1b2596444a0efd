from collections.abc import Iterator
from typing import Any

import pytest

from tests.controlplane.kinds.kueue.kueue_controller import QUEUES_TRAIN_JOBS, kueue
from tests.controlplane.kinds.kueue.kueue_jobs import QueuedJobs, queued_jobs
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import RunningCluster


@pytest.fixture(scope="session")
def _kueue(
    request: pytest.FixtureRequest,
    cluster: RunningCluster,
    _mpi_operator: None,
    _training_operator: None,
    _jobset_controller: None,
) -> Iterator[None]:
    """Kueue, and the controllers whose jobs it queues."""
    if QUEUES_TRAIN_JOBS:
        request.getfixturevalue("_trainer")
    with kueue(cluster):
        yield


@pytest.fixture
async def queued(request: pytest.FixtureRequest, _kueue: None, api: Api, namespace: Namespace) -> QueuedJobs[Any]:
    """The jobs of the test's namespace, by default MPIJobs. It has a queue with a quota of three GPUs, and no node."""
    jobs = queued_jobs(getattr(request, "param", "mpijob"), api, namespace)
    await jobs.open(gpus=3)
    return jobs
