from pathlib import Path

import pytest

from tests.controlplane.operator.operator_jobs import Jobs, defined
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import Cluster


@pytest.fixture
async def jobs(cluster: Cluster, api: Api, namespace: Namespace, tmp_path: Path) -> Jobs:
    """The jobs of the test's namespace, which has a node for them; nobody runs them yet."""
    await defined(cluster)
    await namespace.node()
    return Jobs(api, namespace, tmp_path)
