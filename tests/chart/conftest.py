import pytest

from tests.chart.chart_rendering import Helm
from tests.testkit.controlplane.binaries import NoGo, Tool, client_path


@pytest.fixture(scope="session", name="helm")
def _helm() -> Helm:
    try:
        return Helm(client_path(Tool.HELM))
    except NoGo as reason:
        pytest.skip(str(reason))
