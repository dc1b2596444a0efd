from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from simulator.cloud.dialects import SimulatedCloud
from simulator.cloud.metadata import AnswerMode, MetadataServer
from tests.controlplane.kinds.batchjob.batchjob_jobs import BatchJobs
from tests.controlplane.kinds.mpijob.mpijob_jobs import MpiJobs
from tests.controlplane.kinds.terminationhandler.handler_process import SpotNodes
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import RunningCluster


@pytest.fixture
async def spot(cluster: RunningCluster, namespace: Namespace, tmp_path: Path) -> AsyncIterator[SpotNodes]:
    """The machines under the test's nodes, of which none has a notice yet."""
    metadata = MetadataServer(AnswerMode.HARDENED, cloud=SimulatedCloud.AWS)
    await metadata.start()
    nodes = SpotNodes(cluster, namespace, metadata, tmp_path)
    await nodes.open()
    yield nodes
    await metadata.stop()


@pytest.fixture
def jobs(api: Api, namespace: Namespace) -> BatchJobs:
    """The Indexed Jobs of the test's namespace."""
    return BatchJobs(api, namespace)


@pytest.fixture
def mpi_jobs(_mpi_operator: None, api: Api, namespace: Namespace) -> MpiJobs:
    """The MPIJobs of the test's namespace."""
    return MpiJobs(api, namespace)
