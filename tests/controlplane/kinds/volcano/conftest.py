import pytest

from tests.controlplane.kinds.volcano.volcano_jobs import VolcanoJobs
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import Namespace


@pytest.fixture
def jobs(_volcano: None, api: Api, namespace: Namespace) -> VolcanoJobs:
    """The jobs of the test's namespace, which has no node yet."""
    return VolcanoJobs(api, namespace)
