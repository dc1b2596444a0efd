"""Waves of notices while the API server is slow, limits, fails, loses answers, cuts watches and is away."""

import asyncio
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.chaos_witness import WITNESS_FILE, WitnessedHold, held
from tests.controlplane.faults.conftest import SEED
from tests.controlplane.faults.faults_cluster import WINDOW_SECONDS, Crowd
from tests.controlplane.leader.leader_replicas import LeaderReplica, LeaderReplicas
from tests.testkit.controlplane.faults import RETRY_AFTER, FaultyApi, InjectedFaults
from tests.testkit.waiting import NotYet, until

pytestmark = pytest.mark.long

ROUNDS = int(os.environ.get("FAULTS_ROUNDS", "1"))
"""How often each of the faults comes."""

LEASE_SECONDS = 15
"""Writes that take five seconds each leave no time for a second renewal in a lease of three."""

SETTINGS: dict[str, Any] = {
    "lease_seconds": LEASE_SECONDS,
    # On a machine with too much to do, fifty agents and twenty jobs of one process may say nothing for ten seconds.
    "heartbeat_seconds": 20,
    "store_timeout_seconds": 8,
    "window_seconds": WINDOW_SECONDS,
}
FAULTS = {
    "slow": InjectedFaults(slow=(1.0, 5.0)),
    "limited": InjectedFaults(limited=0.5),
    "failing": InjectedFaults(failing=0.5),
    "lost": InjectedFaults(lost=0.5),
    "watches": InjectedFaults(cut=(0.1, 1.5), late=(0.0, 0.3), expired=0.3),
    "all": InjectedFaults(
        slow=(0.0, 1.0), limited=0.1, failing=0.1, lost=0.1, cut=(0.5, 3.0), late=(0.0, 0.1), expired=0.1
    ),
}
QUICK = ("lost", "watches")
"""Faults under which all notices of a group are stored within its window, unless the machine is too busy."""

ORDER = random.Random(SEED).sample(sorted(FAULTS), len(FAULTS))  # noqa: S311 - no secret
_WITNESS = ("tests.chaos.chaos_witness", "supervisor", "serve")
_LIMITED_SECONDS = 4.0
_MOST_AT_ONCE = 32
"""Requests of one connection."""

_AWAY_SECONDS = 6.0
_MAX_BYTES = 24 * 1024 * 1024


async def test_notices_come_and_go_under_faults(
    proxy: FaultyApi, replicas: LeaderReplicas, source: random.Random, tmp_path: Path
) -> None:
    """Every job leaves out just the nodes that have a notice, nobody is stopped, and one supervisor always leads."""
    replicas.program, observer = _WITNESS, tmp_path / "witness"
    leader = await replicas.start(**SETTINGS, variables={WITNESS_FILE: str(observer)})
    standby = await replicas.start(serving=False, **SETTINGS, variables={WITNESS_FILE: str(tmp_path / "other")})
    async with Crowd.on(replicas.place, leader.peers()) as crowd:
        before = await held(leader.process.pid, observer)
        for name in ORDER * ROUNDS:
            with proxy.faults(FAULTS[name]):
                announced = await crowd.wave(source)
            assert crowd.stops() == {}, name
            assert name not in QUICK or crowd.splits(announced) == {}, name
            await crowd.stored()
        await crowd.withdraw(crowd.jobs)
        await crowd.settled()
        await _keeps_no_more(leader, observer, before)
    assert proxy.injected.keys() >= {"slow", "limited", "failing", "lost", "cut", "late", "expired"}
    assert [one.process.poll() for one in (leader, standby)] == [None, None]
    assert not standby.serves


async def _keeps_no_more(leader: LeaderReplica, observer: Path, before: WitnessedHold) -> None:
    async def so() -> bool:
        now = await held(leader.process.pid, observer)
        assert now.resident_bytes - before.resident_bytes < _MAX_BYTES
        if more := [*(now.tasks - before.tasks).items(), *(["threads"] if now.threads > before.threads else [])]:
            raise NotYet(f"more than before: {more}, {now.threads} threads and not {before.threads}")
        return True

    await until(so, "no more tasks than before")


async def test_a_limited_supervisor_asks_no_more_often_than_it_is_told_to(
    proxy: FaultyApi, replicas: LeaderReplicas
) -> None:
    """It waits as the API server says, however many notices wait with it; afterwards all of them are decided."""
    leader = await replicas.start(**SETTINGS)
    async with Crowd.on(replicas.place, leader.peers()) as crowd:
        before = proxy.requests
        with proxy.faults(InjectedFaults(limited=1.0)):
            await crowd.announce(crowd.jobs)
            await asyncio.sleep(_LIMITED_SECONDS)
            asked = proxy.requests - before
        print(f"{asked} requests in {_LIMITED_SECONDS:g} s, all refused")  # noqa: T201 - the figure
        assert asked < _MOST_AT_ONCE * (_LIMITED_SECONDS / RETRY_AFTER + 1)
        await crowd.settled()
        assert crowd.stops() == {}
        await crowd.stored()
    assert leader.process.poll() is None


@pytest.mark.brief
async def test_thirty_notices_that_are_withdrawn_while_the_api_server_is_away_leave_nothing(
    proxy: FaultyApi, replicas: LeaderReplicas
) -> None:
    """It is away for longer than the lease and forgets its history; after the retention no notice is left either."""
    short = {**SETTINGS, "lease_seconds": 3}
    leader = await replicas.start(**short)
    standby = await replicas.start(serving=False, **short, retention_hours=1e-6)
    async with Crowd.on(replicas.place, leader.peers()) as crowd:
        names = sorted(crowd.jobs)
        await crowd.announce(names[:10])
        with proxy.faults(InjectedFaults(away=True)):
            await crowd.announce(names[10:])
            await asyncio.sleep(_AWAY_SECONDS)
            await crowd.withdraw(names)
            replicas.place.plane.compact()
        await crowd.settled()
        assert crowd.stops() == {}
        await crowd.stored()
        assert not standby.serves
        await leader.kill()

    async def left() -> bool:
        return not await replicas.place.notices()

    await until(left, "no notices")
    assert all(not job["status"]["hosts"].get("excluded") for job in await replicas.place.jobs())
