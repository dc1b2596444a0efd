from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane.chart.chart_cluster import Installation, installation
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.running import ControlPlane, running


@pytest.fixture(scope="session")
def plane(programs: Mapping[BinaryProgram, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane for the chart alone, because the chart makes cluster-scoped objects."""
    with running(programs, tmp_path_factory.mktemp("plane")) as present:
        yield present


@pytest.fixture
async def cluster_with_helm(
    request: pytest.FixtureRequest, plane: ControlPlane, tmp_path: Path
) -> AsyncIterator[Installation]:
    """The chart's control plane with two nodes, without the chart.

    The module's LEVEL is the pod security level of the namespace.
    """
    level = getattr(request.module, "LEVEL", "privileged")
    async with installation(plane, tmp_path / "helm", level) as present:
        yield present
