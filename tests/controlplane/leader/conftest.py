from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane.controlplane_binaries import Program
from tests.controlplane.controlplane_running import ControlPlane
from tests.controlplane.leader.leader_candidates import Hall
from tests.controlplane.store.store_cluster import Place, api_server, place


@pytest.fixture(scope="session")
def leader_plane(programs: Mapping[Program, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server for these tests alone, which may freeze it or take it away and bring it back."""
    with api_server(programs, tmp_path_factory.mktemp("leader")) as running:
        yield running


@pytest.fixture
async def here(leader_plane: ControlPlane) -> AsyncIterator[Place]:
    """That API server, with no notices and jobs."""
    async with place(leader_plane) as own:
        yield own


@pytest.fixture
async def hall(here: Place) -> AsyncIterator[Hall]:
    """A lease of the test's own, and those who run for it."""
    async with Hall.open(here) as own:
        yield own
