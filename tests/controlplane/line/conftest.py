from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.running import ControlPlane, running


@pytest.fixture(scope="session")
def line_plane(
    programs: Mapping[BinaryProgram, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """A control plane for one world after the other: a supervisor sees all jobs of a cluster."""
    with running(programs, tmp_path_factory.mktemp("line")) as plane:
        yield plane
