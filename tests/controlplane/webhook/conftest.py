from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.controlplane.leader.leader_replicas import LeaderReplicas
from tests.controlplane.webhook.webhook_world import WebhookWorld
from tests.testkit.controlplane.installed import InstalledPlace


@pytest.fixture
async def world(here: InstalledPlace, tmp_path: Path) -> AsyncIterator[WebhookWorld]:
    async with LeaderReplicas.on(here, tmp_path) as replicas, WebhookWorld.open(here, replicas, tmp_path) as own:
        await replicas.forget_lease()
        yield own
