from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane.controlplane_binaries import Program
from tests.controlplane.controlplane_running import ControlPlane
from tests.controlplane.pki.pki_world import Shared
from tests.controlplane.store.store_cluster import Place, api_server, place


@pytest.fixture(scope="session")
def pki_plane(programs: Mapping[Program, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server for these tests alone: the keys of an installation are in one place, and some take it away."""
    with api_server(programs, tmp_path_factory.mktemp("pki")) as running:
        yield running


@pytest.fixture
async def here(pki_plane: ControlPlane) -> AsyncIterator[Place]:
    """That API server, with no notices and jobs."""
    async with place(pki_plane) as own:
        yield own


@pytest.fixture
async def shared(here: Place, tmp_path: Path) -> AsyncIterator[Shared]:
    """Supervisors that share their keys; there are neither yet."""
    async with Shared.on(here, tmp_path) as own:
        yield own
