from collections.abc import AsyncIterator, Iterator

import pytest

from tests.controlplane.kinds.karpenter.karpenter_controller import KarpenterJobs, KarpenterPool, karpenter
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import RunningCluster


@pytest.fixture(scope="session")
def _karpenter(cluster: RunningCluster) -> Iterator[None]:
    with karpenter(cluster):
        yield


@pytest.fixture
async def pool(_karpenter: None, api: Api, namespace: Namespace) -> AsyncIterator[KarpenterPool]:
    """A pool for the test's namespace, which has no node yet."""
    pool = KarpenterPool(api, namespace)
    await pool.open()
    yield pool
    await pool.close()


@pytest.fixture
def jobs(api: Api, namespace: Namespace) -> KarpenterJobs:
    """The Indexed Jobs of the test's namespace."""
    return KarpenterJobs(api, namespace)
