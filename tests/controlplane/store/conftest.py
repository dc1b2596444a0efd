from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.installed import api_server
from tests.testkit.controlplane.running import ControlPlane


@pytest.fixture
def own_plane(programs: Mapping[BinaryProgram, Path], tmp_path: Path) -> Iterator[ControlPlane]:
    """An API server for one test, which does not know our resources."""
    with api_server(programs, tmp_path / "plane") as running:
        yield running
