from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane.controlplane_binaries import Program
from tests.controlplane.controlplane_running import ControlPlane
from tests.controlplane.store.store_cluster import Place, api_server, place


@pytest.fixture(scope="session")
def store_plane(programs: Mapping[Program, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server for these tests alone: notices belong to no namespace, and each test wants to see its own."""
    with api_server(programs, tmp_path_factory.mktemp("store")) as running:
        yield running


@pytest.fixture
async def here(store_plane: ControlPlane) -> AsyncIterator[Place]:
    """That API server, with no notices and jobs."""
    async with place(store_plane) as own:
        yield own


@pytest.fixture
def own_plane(programs: Mapping[Program, Path], tmp_path: Path) -> Iterator[ControlPlane]:
    """An API server for one test, which does not know our resources."""
    with api_server(programs, tmp_path / "plane") as running:
        yield running


@pytest.fixture(scope="session")
def harmed_plane(programs: Mapping[Program, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server for tests that harm it and bring it back."""
    with api_server(programs, tmp_path_factory.mktemp("harmed")) as running:
        yield running


@pytest.fixture
async def harmed(harmed_plane: ControlPlane) -> AsyncIterator[Place]:
    """That API server, with no notices and jobs."""
    async with place(harmed_plane) as own:
        yield own
