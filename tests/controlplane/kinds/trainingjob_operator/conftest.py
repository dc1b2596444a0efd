from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.controlplane.kinds.etoperator.etoperator_jobs import TrainingJobs
from tests.controlplane.kinds.trainingjob_operator.trainingjob_operator_process import defined, operating
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace
from tests.testkit.controlplane.running import RunningCluster


@pytest.fixture
async def jobs(cluster: RunningCluster, api: Api, namespace: Namespace, tmp_path: Path) -> AsyncIterator[TrainingJobs]:
    """The jobs of the test's namespace, which has no node yet, and our operator for them."""
    await defined(cluster)
    edl = tmp_path / "edl"
    edl.mkdir()
    async with operating(cluster, namespace.name):
        yield TrainingJobs(api, namespace, edl)
