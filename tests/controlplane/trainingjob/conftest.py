from pathlib import Path

import pytest

from tests.controlplane.operator.operator_jobs import defined
from tests.controlplane.trainingjob.trainingjob_world import ElasticJobs, elastic
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import Cluster


@pytest.fixture
async def jobs(cluster: Cluster, api: Api, namespace: Namespace, tmp_path: Path) -> ElasticJobs:
    """The jobs of the test's namespace; nobody runs them yet, and there is no node for them."""
    await defined(cluster)
    return elastic(api, namespace, tmp_path)
