"""The supervisor dies where no world is needed to see it: at its start, and between two answers to its peers."""

import asyncio
import re
import signal
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from supervisor.domain.ids import JobName
from supervisor.failpoints import At
from supervisor.identity.tokens import SECRET_FILE
from supervisor.store.sqlite import SqliteStore
from supervisor.wiring.startup import STORE_FILE
from tests.chaos.chaos_points import SUPERVISOR, Armed, PointsScene
from tests.chaos.chaos_service import START_SECONDS, life, status
from tests.testkit.serving import PeerRefusal, ServedPeers, launcher_hello, noticed
from tests.testkit.waiting import until

# How an agent's stream fails whose supervisor has died.
_CUT_OFF = (AssertionError, grpc.RpcError, asyncio.InvalidStateError)


def _params(scene: PointsScene) -> list[object]:
    return [
        pytest.param(armed, id=str(armed), marks=[pytest.mark.brief] * armed.brief)
        for armed in SUPERVISOR
        if armed.scene is scene
    ]


@pytest.mark.parametrize("armed", _params(PointsScene.STARTING))
async def test_a_start_that_is_cut_off_is_made_up_for_by_the_next(tmp_path: Path, armed: Armed) -> None:
    """Whatever was written by then, the next start serves, with one secret and no file that others can read."""
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    changes: dict[str, Any] = {"retention_hours": 0.00001}
    async with life(directory, failpoint=armed.setting, **changes) as armed_life:
        await until(lambda: armed_life.process.poll() is not None, seconds=START_SECONDS)
        assert armed_life.fired(armed.name)
    before = (directory / SECRET_FILE).read_bytes() if (directory / SECRET_FILE).exists() else None
    async with life(directory, **changes) as again, again.peers() as peers:
        assert (await status(peers))["jobs"] == []
        await peers.agent("n1")
    secret = directory / SECRET_FILE
    assert before in (None, secret.read_bytes())
    assert secret.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "armed", [Armed(At.PRUNING, PointsScene.STARTING), Armed(At.PRUNED, PointsScene.STARTING)], ids=str
)
async def test_forgetting_that_is_cut_off_is_done_by_the_next(tmp_path: Path, armed: Armed) -> None:
    """What ended long ago is gone after the next start, whether this one had forgotten it or not; the rest is there."""
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    async with life(directory) as first, first.peers() as peers:
        ended, present = await peers.agent("ended"), await peers.agent("present")
        await ended.notices("ended")
        await ended.notices("ended", revision=2, withdrawn=True)
        await present.notices("present")
    async with life(directory, failpoint=armed.setting, retention_hours=0.00001) as second:
        await until(lambda: second.process.poll() is not None, seconds=START_SECONDS)
        assert second.fired(armed.name)
    async with life(directory, retention_hours=0.00001) as third, third.peers() as peers:

        async def only_the_present_one() -> bool:
            return [one["subject"] for one in (await status(peers))["notices"]] == ["present"]

        await until(only_the_present_one, "the notices that are over are forgotten")


@pytest.mark.parametrize("armed", _params(PointsScene.PEERS))
async def test_notices_end_once_although_their_end_is_cut_off(tmp_path: Path, armed: Armed) -> None:
    """Two machines are gone, one replaced and one silent past its deadline; then both are known as gone, once."""
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    async with life(directory, failpoint=armed.setting) as first, first.peers() as peers:
        machine, silent = await peers.agent("replaced"), await peers.agent("silent")
        await machine.notices("replaced")
        await silent.notices("silent", left=0.3)
        silent.call.cancel()
        machine.call.cancel()
        with suppress(*_CUT_OFF):
            await peers.agent("replaced", node_uid="another", session=11)
        await until(lambda: first.process.poll() is not None)
        assert first.fired(armed.name)
    async with life(directory) as second, second.peers() as peers:
        await peers.agent("replaced", node_uid="another", session=11)

        async def both_are_gone() -> bool:
            notices = (await status(peers))["notices"]
            ends = sorted((one["subject"], one["state"], one["episode"]) for one in notices)
            return ends == [("replaced", "gone", 1), ("silent", "gone", 1)]

        await until(both_are_gone, "both machines are gone, each once")


_CONFIRMING = (
    At.STORE_BEGINS,
    At.STORE_WRITTEN,
    At.STORE_COMMITTED,
    At.STORE_PUBLISHED,
    At.NOTICE_RECEIVED,
    At.NOTICE_STORED,
    At.NOTICE_ACKNOWLEDGED,
    At.REPORT_RECEIVED,
    At.REPORT_STORED,
    At.HELLO_RECEIVED,
    At.JOB_REGISTERED,
    At.FIRST_ORDER_SENT,
)


@pytest.mark.parametrize(
    "at", [pytest.param(at, id=at, marks=[pytest.mark.brief] * (at is At.STORE_COMMITTED)) for at in _CONFIRMING]
)
async def test_whatever_was_confirmed_is_known_afterwards(tmp_path: Path, at: At) -> None:
    """Dozens of agents and launchers speak at once; the process dies among the commits that they share."""
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    notices: set[str] = set()
    restarts: dict[str, int] = {}
    # The passings before are those of the peers that are connected already.
    async with life(directory, failpoint=f"{at}:7") as first, first.peers() as peers:
        # One that is confirmed whatever the point is: the others may all be waiting there together.
        await _notice(peers, "first", notices)
        async with asyncio.TaskGroup() as group:
            for number in range(30):
                group.create_task(_notice(peers, f"node{number}", notices))
                group.create_task(_restarts(peers, f"job{number}", restarts))
        await until(lambda: first.process.poll() is not None)
        assert first.fired(at)
    assert notices or restarts
    async with life(directory) as second, second.peers() as peers:
        known = await status(peers)
        assert notices <= {one["subject"] for one in known["notices"]}
        # The launcher's restarts are not shown, but a lower revision than the one that is known is refused.
        assert restarts.keys() <= {one["job"] for one in known["jobs"]}
        for job, revision in restarts.items():
            await _knows(peers, job, revision)


async def _notice(peers: ServedPeers, node: str, confirmed: set[str]) -> None:
    try:
        agent = await peers.agent(node)
        await agent.say(notice=noticed(node))
        await agent.acknowledged(1)
    except _CUT_OFF:
        return
    confirmed.add(node)


async def _restarts(peers: ServedPeers, job: str, confirmed: dict[str, int]) -> None:
    """Registers a job and reports again and again; notes the last revision that was confirmed."""
    try:
        launcher = await peers.launcher(job, [])
        confirmed[job] = 1
        for restarts in range(1, 20):
            await launcher.reports(restarts=restarts)
            confirmed[job] = launcher.report["revision"]
    except (AssertionError, aiohttp.ClientError, OSError):
        return


async def _knows(peers: ServedPeers, job: str, revision: int) -> None:
    report = {**launcher_hello(job, [])["report"], "revision": revision - 1}
    token = peers.tokens.launcher("launcher")
    answer = await peers.post("/v1/launchers/report", token, {"job": job, "instance": "instance-1", **report})
    assert answer.code == "older_revision", (job, revision, answer)


_STOPPING = (
    pytest.param(At.DECISION_MADE, "Running", id=At.DECISION_MADE),
    pytest.param(At.DECISION_STORED, "Stopping", id=At.DECISION_STORED, marks=pytest.mark.brief),
    pytest.param(At.DIRECTIVES_PUSHED, "Stopping", id=At.DIRECTIVES_PUSHED),
    pytest.param(At.ORDER_PUBLISHED, "Stopping", id=At.ORDER_PUBLISHED),
)


@pytest.mark.parametrize(("at", "phase"), _STOPPING)
async def test_a_stop_that_falls_as_the_supervisor_dies_is_one_stop(tmp_path: Path, at: At, phase: str) -> None:
    """Durable or not, told or not: rank 0 hears of it from the next one, and the job is suspended once."""
    directory = tmp_path / "data"
    directory.mkdir(mode=0o700)
    async with life(directory, failpoint=f"{at}@USR1") as first, first.peers() as peers:
        agents = await peers.agents(["n1", "n2"])
        launcher, order = await peers.running("job", ["n1", "n2"])
        await peers.process(order["token"], "n1", 0)
        await launcher.lines.before_heartbeat()
        # From here on, the first decision is the STOP.
        first.process.send_signal(signal.SIGUSR1)
        await agents["n2"].say(notice=noticed("n2"))
        await until(lambda: first.process.poll() is not None)
        assert first.fired(at)
    assert await _stored_phase(directory) == phase
    report = {name: value for name, value in launcher.report.items() if name not in ("job", "instance")}
    async with life(directory) as second, second.peers() as peers:
        launcher = await peers.launcher("job", ["n1", "n2"], report=report)
        process = await peers.process(order["token"], "n1", 0)
        await peers.agent("n1")
        await peers.agent("n2", notices=[noticed("n2")])
        stop = await process.lines.matching(directive="STOP")
        assert await process.reports("saved", stop) == PeerRefusal(200, None)
        suspended = await launcher.lines.matching(order="wait")
        await launcher.reports(running=False, exit_code=255, applied=suspended["generation"])
        await launcher.lines.before_heartbeat()
        # What was published since is that the hosts are free, and no run.
        assert all(line.get("order") == "wait" for line in await launcher.lines.before_heartbeat())
        assert [one["phase"] for one in (await status(peers))["jobs"]] == ["Suspended"]
        phases = [phase for phase, _ in groupby(re.findall(r'"phase": "(\w+)"', second.said()))]
        assert phases.count("Suspended") == 1


async def _stored_phase(directory: Path) -> str:
    store = await SqliteStore.open(directory / STORE_FILE)
    await store.close()
    return store.snapshot().jobs[JobName("job")].decision.phase
