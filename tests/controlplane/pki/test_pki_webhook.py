"""The API server asks supervisors about pods whose CA it was told by the leader alone."""

from pathlib import Path
from typing import Any

import pytest

from supervisor.pki.keys import CA
from tests.controlplane.pki.pki_world import WEBHOOK, Shared
from tests.controlplane.webhook.webhook_world import PUBLIC, WebhookWorld
from tests.supervisor.webhook.webhook_pods import PREFIX, pod

pytestmark = pytest.mark.long


@pytest.mark.brief
async def test_pods_get_the_ca_from_whoever_is_asked(shared: Shared, tmp_path: Path) -> None:
    """Here from one who stands by, with a certificate of its own; somebody had put a foreign CA there."""
    settings: dict[str, Any] = {"webhook_address": "127.0.0.1:0", "public_address": PUBLIC, "webhook_name": WEBHOOK}
    async with WebhookWorld.open(shared.replicas.place, shared.replicas, tmp_path) as world:
        await shared.start(**settings)
        await world.ask(await shared.start(serving=False, **settings), WEBHOOK)
        made = await world.make(pod())
    assert made["metadata"]["annotations"][f"{PREFIX}ca"].encode() == (await shared.secret())[CA]
