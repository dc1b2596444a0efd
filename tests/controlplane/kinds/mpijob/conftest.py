import pytest

from tests.controlplane.kinds.mpijob.mpijob_jobs import MpiJobs
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace


@pytest.fixture
def jobs(_mpi_operator: None, api: Api, namespace: Namespace) -> MpiJobs:
    """The jobs of the test's namespace, which has no node yet."""
    return MpiJobs(api, namespace)
