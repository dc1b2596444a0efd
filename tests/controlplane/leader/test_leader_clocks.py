"""A supervisor whose machine has a wrong clock takes over correctly."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.controlplane.leader.leader_replicas import LeaderReplica, LeaderReplicas
from tests.testkit.controlplane.installed import InstalledPlace
from tests.testkit.faketime import skew
from tests.testkit.serving import noticed
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

NODES = ["n1", "n2", "n3"]
LEAD = 1000.0
PATIENCE = 200.0
SLACK = 3.0
"""Seconds: by which two clocks that follow one Date of whole seconds may differ, and what is said travels."""


@pytest.fixture
async def replicas(here: InstalledPlace, tmp_path: Path) -> AsyncIterator[LeaderReplicas]:
    async with LeaderReplicas.on(here, tmp_path) as all_of_them:
        await all_of_them.forget_lease()
        yield all_of_them


async def _left(replica: LeaderReplica) -> float:
    """The seconds left of the only notice, by the supervisor that serves."""
    async with replica.peers() as peers:
        headers = {"Authorization": f"Bearer {peers.tokens.viewer()}"}
        async with peers.session.get(peers.http + "/v1/status", headers=headers) as answer:
            (notice,) = (await answer.json())["notices"]
        assert notice["state"] == "active"
        left: float = notice["seconds_left"]
        return left


@pytest.mark.parametrize("step", [pytest.param(2000.0, marks=pytest.mark.brief), -7200.0])
async def test_stored_instants_mean_the_same_to_the_next_leader(
    replicas: LeaderReplicas, faketime: Path, step: float
) -> None:
    """A notice that nobody repeats keeps its lead, and a job has waited no longer than it has."""
    first = await replicas.start(within=PATIENCE)
    second = await replicas.start(serving=False, within=PATIENCE, variables=skew(faketime, step))
    async with first.peers() as peers:
        agents = await peers.agents(NODES)
        waits = await peers.launcher(
            "waits", NODES, min_workers=9, max_workers=9, requested_workers=9, max_wait_seconds=1500.0
        )
        assert (await waits.lines.any())["order"] == "wait"
        before = time.monotonic()
        await agents["n3"].say(notice=noticed("n3", left=LEAD))
        await agents["n3"].acknowledged(1)
        after = time.monotonic()
        await first.kill()
    await until(lambda: second.serves, seconds=PATIENCE)
    asked = time.monotonic()
    left = await _left(second)
    assert LEAD - (time.monotonic() - before) - SLACK <= left <= LEAD - (asked - after) + SLACK
    assert second.heard("clock.stepped")
    async with second.peers() as peers:
        # Its first order is of a pass over what the first one has stored.
        waits = await peers.launcher(
            "waits", NODES, min_workers=9, max_workers=9, requested_workers=9, max_wait_seconds=1500.0
        )
        assert (await waits.lines.any())["order"] == "wait"


async def test_a_clock_that_is_right_is_left_alone(replicas: LeaderReplicas) -> None:
    first = await replicas.start(within=PATIENCE)
    assert not first.heard("clock.stepped")
