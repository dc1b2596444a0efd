from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane.controlplane_binaries import Program
from tests.controlplane.controlplane_running import ControlPlane
from tests.controlplane.identity.identity_world import Pods
from tests.controlplane.store.store_cluster import Place, api_server, place


@pytest.fixture(scope="session")
def identity_plane(
    programs: Mapping[Program, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """An API server for these tests alone: some of them take it away, and nobody else's supervisor is to act."""
    with api_server(programs, tmp_path_factory.mktemp("identity")) as running:
        yield running


@pytest.fixture
async def here(identity_plane: ControlPlane) -> AsyncIterator[Place]:
    """That API server, with no notices and jobs."""
    async with place(identity_plane) as own:
        yield own


@pytest.fixture
async def pods(here: Place) -> Pods:
    """Makes pods there."""
    made = Pods(here)
    await made.open()
    return made
