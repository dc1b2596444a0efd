"""Of several supervisors one says what happens, and the next one goes on without saying it again."""

from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.ingest.ingest_cluster import EVENTS, IngestScene, condition
from tests.controlplane.leader.leader_replicas import LeaderReplicas
from tests.testkit.waiting import until

pytestmark = pytest.mark.long


async def about(here: IngestScene, node: str) -> list[Any]:
    """The Events on notices about a node, once there are any."""

    async def found() -> list[Any]:
        items = (await here.api.get(EVENTS))["items"]
        return [each for each in items if each["reason"] == "ReclaimNoticed" and f"Node {node} " in each["message"]]

    return await until(found, f"an Event about {node}")


async def test_the_leader_alone_speaks_and_the_next_one_repeats_nothing(here: IngestScene, tmp_path: Path) -> None:
    async with LeaderReplicas.on(here.place, tmp_path) as replicas:
        await replicas.forget_lease()
        first = await replicas.start()
        await replicas.start(serving=False)
        for node in ("a", "b", "c"):
            await here.node(node)
        await here.node_says("a", condition("InstanceExpired"))
        assert len(await about(here, "a")) == 1
        await first.kill()
        await until(lambda: _serves(replicas), "the other one leads")
        await here.node_says("b", condition("InstanceExpired"))
        assert len(await about(here, "b")) == 1
        # What would be said twice of either would have been said before this.
        await here.node_says("c", condition("InstanceExpired"))
        assert len(await about(here, "c")) == 1
        for node in ("a", "b"):
            (event,) = await about(here, node)
            assert event.get("series") is None


async def _serves(replicas: LeaderReplicas) -> bool:
    return replicas.all[-1].serves
