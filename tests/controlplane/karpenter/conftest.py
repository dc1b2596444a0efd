from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane.batchjob.batchjob_jobs import BatchJobs
from tests.controlplane.karpenter.karpenter_controller import NAME, KarpenterPool, autoscaling
from tests.controlplane.operators import built, plane_of_running_pods
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import ControlPlane, RunningCluster


@pytest.fixture(scope="session")
def plane(programs: Mapping[BinaryProgram, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane of this process, with Karpenter."""
    karpenter = built(NAME)
    with (
        plane_of_running_pods(programs, tmp_path_factory.mktemp(NAME)) as running,
        autoscaling(karpenter, running.cluster),
    ):
        yield running


@pytest.fixture(scope="session")
def cluster(plane: ControlPlane) -> RunningCluster:
    """This one instead of the control plane that other tests share."""
    return plane.cluster


@pytest.fixture
async def pool(api: Api, namespace: Namespace) -> AsyncIterator[KarpenterPool]:
    """A pool for the test's namespace, which has no node yet."""
    pool = KarpenterPool(api, namespace)
    await pool.open()
    yield pool
    await pool.close()


@pytest.fixture
def jobs(api: Api, namespace: Namespace) -> BatchJobs:
    """The Indexed Jobs of the test's namespace."""
    return BatchJobs(api, namespace)
