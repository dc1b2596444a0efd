from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane.controlplane_binaries import Program
from tests.controlplane.controlplane_running import ControlPlane
from tests.controlplane.store.store_cluster import api_server


@pytest.fixture
def own_plane(programs: Mapping[Program, Path], tmp_path: Path) -> Iterator[ControlPlane]:
    """An API server for one test, which does not know our resources."""
    with api_server(programs, tmp_path / "plane") as running:
        yield running
