import pytest

from tests.controlplane.kinds.trainjob.trainjob_jobs import TrainJobs
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace


@pytest.fixture
def jobs(_trainer: None, api: Api, namespace: Namespace) -> TrainJobs:
    """The jobs of the test's namespace, which has no node yet."""
    return TrainJobs(api, namespace)
