import pytest

from tests.controlplane.kinds.jobset.jobset_jobs import JobSets
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace


@pytest.fixture
def jobs(_jobset_controller: None, api: Api, namespace: Namespace) -> JobSets:
    """The jobs of the test's namespace, which has no node yet."""
    return JobSets(api, namespace)
