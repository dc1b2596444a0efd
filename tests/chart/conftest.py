import pytest

from tests.chart.chart_rendering import Helm
from tests.controlplane.controlplane_binaries import NoGo, helm

LEAST = {"tls": {"existingSecret": "certificate", "caConfigMap": "authorities"}}


@pytest.fixture(scope="session", name="helm")
def _helm() -> Helm:
    """Helm, with the least values that the chart needs; skipped without Go, and failed where nobody has built it."""
    try:
        return Helm(helm(), LEAST)
    except NoGo as reason:
        pytest.skip(str(reason))
