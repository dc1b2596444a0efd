"""What training processes say over HTTP: who is told what, and when an answer counts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from supervisor.decide.ranks import RankCounts
from supervisor.domain.job import AcknowledgementKind, Phase
from tests.testkit.serving import AgentPeer, LauncherPeer, PeerRefusal, ProcessPeer, Served, serving
from tests.testkit.waiting import until

STREAM = "/v1/processes/stream"
REPORT = "/v1/processes/report"
NODES = ["n1", "n2", "n3"]
MALFORMED_HELLOS: tuple[dict[str, Any], ...] = (
    {"process": ""},
    {"process": "p" * 254},
    {"host": None},
    {"rank": -1},
    {"rank": "0"},
    {"rank": 10**30},
    {"pid": None},
    {"step": 1.5},
)
MALFORMED_REPORTS: tuple[dict[str, Any], ...] = (
    {"kind": "won"},
    {"kind": None},
    {"run": -1},
    {"generation": None},
    {"step": "7"},
)


class Training:
    """A job that runs on three hosts and needs all of them, or `least`; rank 0 is on n1."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.agents: dict[str, AgentPeer] = {}
        self.launcher: LauncherPeer
        self.token = ""
        self.ranks: list[ProcessPeer] = []

    async def start(self, least: int = 3, **changes: Any) -> "Training":
        peers = self.served.peers
        self.agents = await peers.agents(NODES)
        self.launcher, order = await peers.running("job", NODES, min_workers=least, **changes)
        self.token = order["token"]
        self.ranks = [await peers.process(self.token, node, rank) for rank, node in enumerate(NODES)]
        for process in self.ranks:
            assert (await process.lines.any())["directive"] == "RUN"
        return self

    async def leaves_out(self, node: str) -> None:
        """The launcher has done so, once that was decided: its processes may have heard of the notice before."""
        order = await self.launcher.lines.matching(exclusions=[node])
        await self.launcher.reports(applied=order["generation"])

    @property
    def phase(self) -> Phase:
        return self.served.job("job").decision.phase


async def test_processes_without_ranks_are_stopped_and_answer_together(tmp_path: Path) -> None:
    """The last of them answers for the job, at once: nobody waits for a rank 0 that does not exist."""
    async with serving(tmp_path, rank_zero_grace_seconds=0.1) as served:
        agents = await served.peers.agents(NODES)
        _, order = await served.peers.running("job", NODES, min_workers=3)
        processes = [await served.peers.process(order["token"], node, None) for node in NODES]
        assert served.processes.rank_counts(served.job("job").id, 1) == RankCounts(processes=3, ranked=0, zeros=0)
        await agents["n3"].notices("n3")
        stops = [await process.lines.matching(directive="STOP") for process in processes]
        for process, stop in zip(processes[:2], stops, strict=False):
            await process.reports("left", stop)
        assert served.job("job").observed.acknowledgement is None
        await processes[2].reports("saved", stops[2])
        await until(lambda: served.job("job").decision.phase is Phase.SUSPENDED)
        answer = served.job("job").observed.acknowledgement
        assert answer is not None
        assert answer.kind is AcknowledgementKind.SAVED


async def test_a_process_without_a_rank_does_not_answer_for_those_that_have_one(served: Served) -> None:
    training = await Training(served).start()
    other = await served.peers.process(training.token, "n9", None)
    await training.agents["n3"].notices("n3")
    stop = await training.ranks[0].lines.matching(directive="STOP")
    await other.reports("left", stop)
    assert served.job("job").observed.acknowledgement is None
    assert training.phase is Phase.STOPPING


async def test_stop_goes_to_rank_zero_alone(served: Served) -> None:
    """The others go on until it has answered, and hear of the notice meanwhile; the doomed one, how long it has."""
    training = await Training(served).start()
    await training.agents["n3"].notices("n3")
    stop = await training.ranks[0].lines.matching(directive="STOP")
    assert stop["generation"] == getattr(served.job("job").decision.stop, "generation", None)
    assert stop["release"] is False
    for process, directive in zip(training.ranks[1:], ("RUN", "LEAVE"), strict=True):
        lines = [await process.lines.next()]
        while (lines[-1]["directive"], (lines[-1]["notice"] or {}).get("host")) != (directive, "n3"):
            lines.append(await process.lines.next())
        lines += await process.lines.before_heartbeat()
        assert {line["directive"] for line in lines if line["act_in"] == 0} <= {"RUN"}
        assert lines[-1]["directive"] == directive


@pytest.mark.parametrize("kind", ["saved", "kept", "left"])
async def test_the_answer_of_rank_zero_is_durable_before_it_is_confirmed_and_suspends(
    served: Served, kind: str
) -> None:
    """A crash after the confirmation cannot lose it; the others hear at once, and may go when the run has ended."""
    training = await Training(served).start()
    await training.agents["n3"].notices("n3")
    stop = await training.ranks[0].lines.matching(directive="STOP")
    assert await training.ranks[0].reports(kind, stop, step=42) == PeerRefusal(200, None)
    stored = served.job("job").observed.acknowledgement
    assert stored is not None
    assert (stored.kind, stored.step, stored.run) == (AcknowledgementKind(kind), 42, 1)
    order = await training.launcher.lines.matching(phase="Suspended")
    assert order["order"] == "wait"
    for process in training.ranks[1:]:
        assert (await process.lines.matching(directive="STOP"))["release"] is False
    await training.launcher.reports(running=False, exit_code=-15, applied=order["generation"])
    for process in training.ranks:
        assert (await process.lines.matching(directive="STOP", release=True))["run"] == 1


@pytest.mark.parametrize(("rank", "older"), [(1, 0), (0, 1), (None, 0)])
async def test_any_other_answer_acknowledges_nothing(served: Served, rank: int | None, older: int) -> None:
    """From another rank, or to a directive from before the STOP: confirmed, so that it is not repeated."""
    training = await Training(served).start()
    await training.agents["n3"].notices("n3")
    stop = await training.ranks[0].lines.matching(directive="STOP")
    directive = {"run": 1, "generation": stop["generation"] - older}
    sender = training.ranks[1 if older == 0 else 0]
    assert await sender.reports("left", directive, rank=rank) == PeerRefusal(200, None)
    assert served.job("job").observed.acknowledgement is None
    await training.ranks[2].lines.before_heartbeat()
    assert training.phase is Phase.STOPPING


async def test_a_notice_is_shown_before_anything_is_decided(tmp_path: Path) -> None:
    """While a group is still collected, every process knows; each its own host's notice first, and when that ends."""
    async with serving(tmp_path, window_seconds=30.0) as served:
        training = await Training(served).start(least=1)
        await training.agents["n2"].notices("n2", left=50.0)
        await training.agents["n3"].notices("n3", left=40.0)
        lines = [await process.lines.next() for process in training.ranks]
        for rank, host in enumerate(["n3", "n2", "n3"]):
            while (lines[rank]["notice"] or {}).get("host") != host:
                lines[rank] = await training.ranks[rank].lines.next()
        assert [line["directive"] for line in lines] == ["RUN", "LEAVE", "LEAVE"]
        assert 35 < lines[2]["act_in"] < 40 - 0.5
        assert [line["notice"]["own"] for line in lines] == [False, True, True]
        assert lines[0]["notice"]["id"] == "metadata/n3/uid-n3#1"
        assert lines[0]["notice"]["source"] == "metadata"
        assert 35 < lines[0]["seconds_left"] <= 40
        assert training.phase is Phase.RUNNING
        assert not served.job("job").decision.exclusions


async def test_a_doomed_worker_is_told_when_to_leave(served: Served) -> None:
    training = await Training(served).start(least=1)
    await training.agents["n3"].notices("n3", left=60.0)
    leave = await training.ranks[2].lines.matching(directive="LEAVE")
    assert 50 < leave["act_in"] < 60 - 0.5
    await training.leaves_out("n3")
    lines = [await training.ranks[0].lines.next(), *await training.ranks[0].lines.before_heartbeat()]
    assert {line["directive"] for line in lines} == {"RUN"}


async def test_with_torchrun_the_others_save_meanwhile(served: Served) -> None:
    training = await Training(served).start(least=1, framework="torchrun")
    await training.agents["n3"].notices("n3")
    assert (await training.ranks[0].lines.matching(directive="CHECKPOINT"))["act_in"] == 0.0


async def test_a_process_of_a_run_that_is_over_stops_trying(served: Served) -> None:
    training = await Training(served).start()
    await training.launcher.reports(run=2)
    hello = {"process": "p", "host": "n1", "rank": 0, "pid": 1}
    assert await served.peers.post(STREAM, training.token, hello) == PeerRefusal(409, "run_is_over")
    present = served.peers.tokens.process("job", served.job("job").uid, 2)
    await training.launcher.reports(result="succeeded", running=False, exit_code=0)
    assert await served.peers.post(STREAM, present, hello) == PeerRefusal(409, "run_is_over")


async def test_a_process_of_an_unknown_job_tries_again_later(served: Served) -> None:
    """There is no such job, or it is a later one of the same name."""
    await served.peers.launcher("job", ["n1"])
    hello = {"process": "p", "host": "n1", "rank": 0, "pid": 1}
    report = {"process": "p", "host": "n1", "rank": 0, "run": 1, "generation": 1, "kind": "left"}
    for name, uid in (("nobody", "uid"), ("job", "uid-of-an-earlier-one")):
        token = served.peers.tokens.process(name, uid, 1)
        assert await served.peers.post(STREAM, token, hello) == PeerRefusal(404, "unknown_job")
        assert await served.peers.post(REPORT, token, report) == PeerRefusal(404, "unknown_job")


async def test_a_token_speaks_for_its_run_only(served: Served) -> None:
    training = await Training(served).start()
    assert await training.ranks[0].reports("left", {"run": 2, "generation": 1}) == PeerRefusal(403, "foreign_token")


async def test_what_is_malformed_is_refused(served: Served) -> None:
    token = served.peers.tokens.process("job", "uid", 1)
    hello = {"process": "p", "host": "n1", "rank": 0, "pid": 1}
    for changes in MALFORMED_HELLOS:
        assert await served.peers.post(STREAM, token, {**hello, **changes}) == PeerRefusal(400, "malformed"), changes
    report = {"process": "p", "host": "n1", "rank": 0, "run": 1, "generation": 1, "kind": "left"}
    for changes in MALFORMED_REPORTS:
        assert await served.peers.post(REPORT, token, {**report, **changes}) == PeerRefusal(400, "malformed"), changes


async def test_a_body_above_its_limit_is_refused(served: Served) -> None:
    token = served.peers.tokens.process("job", "uid", 1)
    assert await served.peers.post(REPORT, token, b" " * 16 * 1024) == PeerRefusal(400, "malformed")
    assert await served.peers.post(REPORT, token, b" " * (16 * 1024 + 1)) == PeerRefusal(413, "oversized")


async def test_processes_hear_goodbye_when_the_supervisor_stops(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        training = await Training(served).start()
        farewells = (process.lines.matching(type="goodbye") for process in training.ranks)
        goodbye, *_ = await asyncio.gather(*farewells, served.stop())
        assert goodbye == {"type": "goodbye", "reason": "the supervisor is stopping"}
        assert await training.ranks[0].lines.any() == {}
