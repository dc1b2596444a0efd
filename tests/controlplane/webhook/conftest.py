from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest

from tests.controlplane.leader.leader_replicas import LeaderReplicas
from tests.controlplane.webhook.webhook_world import WebhookWorld
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.installed import InstalledPlace, api_server
from tests.testkit.controlplane.running import ControlPlane


@pytest.fixture(scope="session")
def api_plane(
    programs: Mapping[BinaryProgram, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """An API server for these tests alone: nobody else's pods are to come to their webhooks."""
    with api_server(programs, tmp_path_factory.mktemp("webhook")) as running:
        yield running


@pytest.fixture
async def world(here: InstalledPlace, tmp_path: Path) -> AsyncIterator[WebhookWorld]:
    async with LeaderReplicas.on(here, tmp_path) as replicas, WebhookWorld.open(here, replicas, tmp_path) as own:
        await replicas.forget_lease()
        yield own
