import pytest

from tests.controlplane.kinds.batchjob.batchjob_jobs import BatchJobs
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace


@pytest.fixture
def jobs(api: Api, namespace: Namespace) -> BatchJobs:
    """The jobs of the test's namespace, which has no node yet."""
    return BatchJobs(api, namespace)
