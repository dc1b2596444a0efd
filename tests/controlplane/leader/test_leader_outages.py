"""The API server goes away from all supervisors at once: nobody is stopped by that, and nobody goes down unwarned."""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.leader.leader_replicas import LeaderReplica, LeaderReplicas
from tests.controlplane.leader.test_leader_replicas import decision
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.installed import InstalledPlace, define
from tests.testkit.controlplane.outages import frozen
from tests.testkit.serving import AgentPeer, LauncherPeer, Lines, ProcessPeer, ServedPeers, noticed
from tests.testkit.waiting import until

pytestmark = pytest.mark.long

OUTAGE = float(os.environ.get("LEADER_OUTAGE_SECONDS", "8"))
"""Longer than a lease and a time-out. Thirty seconds change nothing but the time that a test takes."""

NODES = ["n1", "n2", "n3", "n4"]
SETTINGS: dict[str, Any] = {
    # Agents are taken for silent after three: a request may hang for as long as the store's time-out, and a machine
    # with too much to do keeps the test from sending any for longer.
    "heartbeat_seconds": 20,
    "store_timeout_seconds": 2,
    "stop_timeout_seconds": 60,
    "margin_seconds": 2,
    "leave_margin_seconds": 1,
}


@pytest.fixture
async def replicas(here: InstalledPlace, tmp_path: Path) -> AsyncIterator[LeaderReplicas]:
    async with LeaderReplicas.on(here, tmp_path) as all_of_them:
        await all_of_them.forget_lease()
        yield all_of_them


class OutageTraining:
    """A job of four hosts, two of which it needs, and all that its peers hear."""

    def __init__(self, agents: dict[str, AgentPeer], launcher: LauncherPeer, ranks: list[ProcessPeer]) -> None:
        self.agents = agents
        self.launcher = launcher
        self.ranks = ranks
        self.heard: list[list[dict[str, Any]]] = [[] for _ in ranks]
        self.orders: list[dict[str, Any]] = []

    @classmethod
    @asynccontextmanager
    async def on(cls, replica: LeaderReplica) -> AsyncIterator["OutageTraining"]:
        async with replica.peers() as peers, AsyncExitStack() as stack:
            one = await cls._connected(peers)
            streams = [(rank.lines, heard) for rank, heard in zip(one.ranks, one.heard, strict=True)]
            for lines, heard in [*streams, (one.launcher.lines, one.orders)]:
                task = asyncio.create_task(_read(lines, heard))
                stack.push_async_callback(asyncio.wait, [task])
                stack.callback(task.cancel)
            yield one

    @classmethod
    async def _connected(cls, peers: ServedPeers) -> "OutageTraining":
        agents = await peers.agents(NODES)
        launcher, order = await peers.running("job", NODES, min_workers=2)
        return cls(agents, launcher, [await peers.process(order["token"], node, n) for n, node in enumerate(NODES)])

    def told(self, rank: int, directive: str) -> list[dict[str, Any]]:
        return [line for line in self.heard[rank] if line.get("directive") == directive]

    def stopped(self) -> list[int]:
        """The ranks that were told to stop, or to leave at once."""
        now = [rank for rank in range(4) for line in self.told(rank, "LEAVE") if line["act_in"] == 0]
        return [*(rank for rank in range(4) if self.told(rank, "STOP")), *now]

    def ended(self) -> list[int]:
        return [rank for rank, heard in enumerate(self.heard) if any(line.get("type") == "goodbye" for line in heard)]


async def _read(lines: Lines, heard: list[dict[str, Any]]) -> None:
    while line := await lines.any():
        heard.append({**line, "at": time.monotonic()})


class Outage:
    def __init__(self, place: InstalledPlace) -> None:
        self.place = place
        self.over_at = 0.0

    @asynccontextmanager
    async def silent(self) -> AsyncIterator[None]:
        with frozen(self.place.plane):
            yield
            self.over_at = time.monotonic()

    @asynccontextmanager
    async def killed(self) -> AsyncIterator[None]:
        """It is restarted with the same data, and what etcd had from before is forgotten."""
        plane = self.place.plane
        plane.kill(BinaryProgram.API_SERVER)
        yield
        plane.compact()
        plane.launch(BinaryProgram.API_SERVER)
        await asyncio.to_thread(plane.wait_ready, BinaryProgram.API_SERVER)
        self.over_at = time.monotonic()


@pytest.mark.parametrize("how", [pytest.param("silent", marks=pytest.mark.brief), "killed"])
async def test_an_outage_in_the_middle_of_a_reclaim_stops_nobody(replicas: LeaderReplicas, how: str) -> None:
    """A process whose host ends meanwhile is told to leave in time; everything else is decided when it is over."""
    first, second = await replicas.start(**SETTINGS), await replicas.start(serving=False, **SETTINGS)
    outage = Outage(replicas.place)
    async with OutageTraining.on(first) as training:
        before = await decision(replicas.place)
        async with getattr(outage, how)():
            begun = time.monotonic()
            await training.agents["n4"].say(notice=noticed("n4", left=OUTAGE - 1))
            await until(lambda: training.told(3, "LEAVE"))
            leave = training.told(3, "LEAVE")[-1]
            # Not before it has to be, and before the host ends.
            assert OUTAGE - 2.5 < leave["at"] + leave["act_in"] - begun < OUTAGE - 1
            await training.agents["n2"].say(notice=noticed("n2", left=OUTAGE + 60))
            await training.agents["n3"].say(notice=noticed("n3", left=OUTAGE + 60))
            await until(lambda: training.told(1, "LEAVE") and training.told(2, "LEAVE"))
            await asyncio.sleep(max(0.0, begun + OUTAGE - time.monotonic()))
            assert training.stopped() == []
            assert training.ended() == []
            assert not training.told(0, "LEAVE")
            assert not [order for order in training.orders if order.get("generation", 0) > before["generation"]]
        await until(lambda: training.told(0, "STOP"))
        seconds = training.told(0, "STOP")[0]["at"] - outage.over_at
        assert training.ended() == []
        for node in ("n2", "n3", "n4"):
            await training.agents[node].acknowledged(1)
        assert (await decision(replicas.place))["epoch"] == 1
    assert not second.serves
    print(f"\n{how} for {OUTAGE:g} s: the STOP that is due is told {max(0.0, seconds):.2f} s after its end")  # noqa: T201
    assert seconds < 15


async def test_a_leader_that_dies_during_an_outage_is_followed_after_it(replicas: LeaderReplicas) -> None:
    """Nobody leads until the API server is there again; then the one who stood by does, with all that is stored."""
    first, second = await replicas.start(**SETTINGS), await replicas.start(serving=False, **SETTINGS)
    async with OutageTraining.on(first) as training:
        await training.agents["n4"].notices("n4", left=60)
        before = await decision(replicas.place)
        with frozen(replicas.place.plane):
            await first.kill()
            await asyncio.sleep(5)  # Longer than the lease, in which the one who stands by sees nothing.
            assert not second.serves
            begun = time.monotonic()
    await until(lambda: second.serves)
    print(f"\na leader that died in an outage is followed {time.monotonic() - begun:.2f} s after its end")  # noqa: T201
    async with second.peers() as peers:
        report = {name: value for name, value in training.launcher.report.items() if name not in ("job", "instance")}
        again = await peers.launcher("job", NODES, min_workers=2, report=report)
        assert (await again.lines.any())["generation"] >= before["generation"]


async def test_a_history_that_is_forgotten_under_the_watches_is_read_again(replicas: LeaderReplicas) -> None:
    """Of the one who leads and of the one who stands by, which goes on from all of it."""
    here = replicas.place
    first, second = await replicas.start(**SETTINGS), await replicas.start(serving=False, **SETTINGS)
    async with OutageTraining.on(first) as training:
        await training.agents["n4"].notices("n4", left=60)
        async with Outage(here).killed():
            pass
        await define(here.api)
        await training.agents["n3"].notices("n3", left=60)
        here.plane.compact()

        async def excluded() -> bool:
            job = (await here.jobs())[0]
            return bool(job["status"]["hosts"].get("excluded") == ["n3", "n4"])

        await until(excluded, "both to be left out")
        before = await decision(here)
        await first.kill()
    await until(lambda: second.serves)
    async with second.peers() as peers:
        report = {name: value for name, value in training.launcher.report.items() if name not in ("job", "instance")}
        again = await peers.launcher("job", NODES, min_workers=2, report=report)
        line = await again.lines.any()
        assert line["exclusions"] == ["n3", "n4"]
        assert line["generation"] >= before["generation"]
    assert [one.process.poll() for one in (first, second)] == [-9, None]
