from pathlib import Path

import pytest

from tests.controlplane.operator.operator_jobs import OperatorJobs, defined
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import RunningCluster


@pytest.fixture
async def jobs(cluster: RunningCluster, api: Api, namespace: Namespace, tmp_path: Path) -> OperatorJobs:
    """The jobs of the test's namespace, which has a node for them; nobody runs them yet."""
    await defined(cluster)
    await namespace.node()
    return OperatorJobs(api, namespace, tmp_path)
