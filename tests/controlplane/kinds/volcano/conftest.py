from collections.abc import Iterator

import pytest

from tests.controlplane.kinds.volcano.volcano_controllers import volcano
from tests.controlplane.kinds.volcano.volcano_jobs import VolcanoJobs
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import RunningCluster


@pytest.fixture(scope="session")
def _volcano(cluster: RunningCluster) -> Iterator[None]:
    with volcano(cluster):
        yield


@pytest.fixture
def jobs(_volcano: None, api: Api, namespace: Namespace) -> VolcanoJobs:
    """The jobs of the test's namespace, which has no node yet."""
    return VolcanoJobs(api, namespace)
