from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane.controlplane_binaries import Program
from tests.controlplane.controlplane_running import ControlPlane
from tests.controlplane.ingest.ingest_cluster import Scene, scene
from tests.controlplane.store.store_cluster import api_server


@pytest.fixture(scope="session")
def ingest_plane(programs: Mapping[Program, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server for these tests alone: nodes and notices belong to no namespace, and nobody else touches them."""
    with api_server(programs, tmp_path_factory.mktemp("ingest")) as running:
        yield running


@pytest.fixture
async def here(ingest_plane: ControlPlane) -> AsyncIterator[Scene]:
    """That API server, with nothing in it."""
    async with scene(ingest_plane) as own:
        yield own
