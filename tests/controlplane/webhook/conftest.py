from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane.controlplane_binaries import Program
from tests.controlplane.controlplane_running import ControlPlane
from tests.controlplane.leader.leader_replicas import Replicas
from tests.controlplane.store.store_cluster import Place, api_server
from tests.controlplane.webhook.webhook_world import World


@pytest.fixture(scope="session")
def api_plane(programs: Mapping[Program, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server for these tests alone: nobody else's pods are to come to their webhooks."""
    with api_server(programs, tmp_path_factory.mktemp("webhook")) as running:
        yield running


@pytest.fixture
async def world(here: Place, tmp_path: Path) -> AsyncIterator[World]:
    async with Replicas.on(here, tmp_path) as replicas, World.open(here, replicas, tmp_path) as own:
        await replicas.forget_lease()
        yield own
