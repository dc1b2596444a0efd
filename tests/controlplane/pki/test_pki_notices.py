"""Waves of notices go on while certificates and their CA are rotated."""

import random
from pathlib import Path

import pytest

from supervisor.identity.tokens import Tokens
from supervisor.pki.keys import CA, CA_KEY, TOKENS, Keys
from tests.controlplane.faults.faults_cluster import WINDOW_SECONDS, Crowd
from tests.controlplane.pki.pki_world import (
    LOOKS_OFTEN,
    Shared,
    another,
    endpoints,
    leaf,
    ports,
    published,
    serves_another,
)
from tests.testkit.serving import ServedPeers

pytestmark = pytest.mark.long


@pytest.mark.brief
async def test_notices_come_and_go_while_the_authority_is_rotated(shared: Shared, tmp_path: Path) -> None:
    """Streams from before stay open and nobody is stopped; at each step an agent that trusts the ConfigMap gets in.

    The others trust both authorities from the start, as clients do that read the ConfigMap again.
    """
    source = random.Random(1)  # noqa: S311 - no secret
    leader = await shared.start(tls_leaf_hours=LOOKS_OFTEN, heartbeat_seconds=20, window_seconds=WINDOW_SECONDS)
    old = await shared.secret()
    new, key = another(tmp_path)
    steps = [{CA: old[CA] + new}, {CA: new + old[CA], CA_KEY: key}, {CA: new, CA_KEY: key}]
    everybody = ServedPeers.of(Tokens(old[TOKENS]), endpoints(leader), old[CA] + new)
    async with Crowd.on(shared.replicas.place, everybody) as crowd:
        before = await leaf(ports(leader)[0], old[CA])
        for number, step in enumerate(steps):
            await shared.change(step)
            announced = await crowd.wave(source)
            assert crowd.splits(announced) == {}
            await published(shared, Keys.read({**old, **step}, 0).trusted)
            trusted = ServedPeers.of(Tokens(old[TOKENS]), endpoints(leader), step[CA])
            async with trusted as others:
                await (await others.agent(f"late{number}")).notices(f"late{number}", withdrawn=True)
            await crowd.stored()
        await serves_another(leader, new, before)
        assert crowd.stops() == {}
    assert leader.process.poll() is None
