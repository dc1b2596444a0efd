"""The agents' stream: what is acknowledged is durable, and nobody speaks for another node."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from reclaim.v1 import reclaim_pb2 as wire

from supervisor.domain.ids import NoticeId
from supervisor.domain.notice import NODE_CONDITION, NoticeState, ReclaimNotice
from supervisor.store.interface import NoticeChange
from supervisor.store.sqlite import SqliteStore
from tests.supervisor.decide.decide_builders import notice as decided_notice
from tests.testkit.serving import HEARTBEAT, AgentPeer, Served, full_disk, hello, noticed, serving
from tests.testkit.waiting import PATIENCE, until


async def test_an_agent_is_welcomed_and_its_notices_are_acknowledged_when_durable(served: Served) -> None:
    agent = served.peers.stranger(served.peers.tokens.agent("n1"))
    await agent.say(hello=hello("n1", state=wire.SOURCE_STATE_NOTICED, notices=[noticed("n1", 1)]))
    welcome = await agent.read("welcome")
    assert welcome.heartbeat_seconds == HEARTBEAT
    assert await agent.acknowledged(1) == "metadata/uid-n1"
    assert served.notices()["n1"].state is NoticeState.ACTIVE
    await agent.say(notice=noticed("n1", 2, withdrawn=True))
    await agent.acknowledged(2)
    assert served.notices()["n1"].state is NoticeState.WITHDRAWN


async def test_what_was_acknowledged_is_there_after_a_restart(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        agent = await served.peers.agent("n1")
        await agent.say(notice=noticed("n1"))
        await agent.acknowledged(1)
        before = served.notices()
    async with serving(tmp_path) as served:
        assert served.notices() == before


async def test_a_hello_after_a_restart_counts_by_the_agents_clock(tmp_path: Path) -> None:
    """The stored deadline, of the same report, is another clock's: here one that was ten minutes behind."""
    async with serving(tmp_path) as served:
        agent = await served.peers.agent("n1", notices=[noticed("n1", left=60.0)])
        await agent.acknowledged(1)
        (known,) = served.store.snapshot().notices.values()
        moved = replace(known, deadline=(known.deadline or 0.0) - 600.0)
        await served.store.put_notice(known.id, lambda _known: moved)
    async with serving(tmp_path) as served:
        agent = await served.peers.agent("n1", notices=[noticed("n1", left=50.0)])
        await agent.acknowledged(1)
        (known,) = served.store.snapshot().notices.values()
        assert (known.state, known.episode) == (NoticeState.ACTIVE, 1)
        assert known.deadline == pytest.approx(time.time() + 50.0, abs=20.0)


async def test_late_and_repeated_reports_change_nothing_and_are_acknowledged(served: Served) -> None:
    """Otherwise the agent would repeat them for ever."""
    agent = await served.peers.agent("n1")
    await agent.say(notice=noticed("n1", 5))
    await agent.acknowledged(5)
    before = served.store.snapshot()
    await agent.say(notice=noticed("n1", 5))
    await agent.acknowledged(5)
    await agent.say(notice=noticed("n1", 4, withdrawn=True))
    await agent.acknowledged(4)
    assert served.store.snapshot() is before


async def test_an_older_session_is_told_of_the_higher_one(served: Served) -> None:
    await served.peers.agent("n1", session=11)
    older = served.peers.stranger(served.peers.tokens.agent("n1"))
    await older.say(hello=hello("n1", session=10, notices=[noticed("n1")]))
    assert (await older.read("superseded")).session == 11
    assert await older.ended() is grpc.StatusCode.OK
    assert not served.store.snapshot().notices
    await served.agent_is("n1", connected=True)


async def test_a_connected_agent_that_is_replaced_is_told_so(served: Served) -> None:
    older = await served.peers.agent("n1", session=10)
    newer = await served.peers.agent("n1", session=11)
    assert (await older.read("superseded")).session == 11
    assert await older.ended() is grpc.StatusCode.OK
    await newer.say(notice=noticed("n1"))
    await newer.acknowledged(1)
    await served.agent_is("n1", connected=True)


async def test_the_end_of_an_old_stream_does_not_count_against_the_new_one(served: Served) -> None:
    """An agent that reconnects has two streams until the old one is found out; the node stays known and clear."""
    old = await served.peers.agent("n1")
    new = await served.peers.agent("n1")
    assert await old.ended() is grpc.StatusCode.OK
    await new.read("heartbeat")
    agent = await served.agent_is("n1", connected=True)
    assert agent["sources"] == [{"source": "metadata", "state": "clear"}]


async def test_a_hello_of_an_earlier_stream_that_comes_late_changes_nothing(served: Served) -> None:
    """What it announces is withdrawn, though nothing was known of it then, and the later stream goes on."""
    agent = await served.peers.agent("n1", stream=2)
    await agent.say(notice=noticed("n1", 2, withdrawn=True))
    await agent.acknowledged(2)
    late = served.peers.stranger(served.peers.tokens.agent("n1"))
    await late.say(hello=hello("n1", stream=1, state=wire.SOURCE_STATE_NOTICED, notices=[noticed("n1", 1)]))
    assert await late.ended() is grpc.StatusCode.OK
    assert not served.store.snapshot().notices
    await agent.read("heartbeat")
    shown = await served.agent_is("n1", connected=True)
    assert shown["sources"] == [{"source": "metadata", "state": "clear"}]
    assert {(each["code"], each["count"]) for each in (await served.status())["refused"]} == {("older_session", 1)}


@pytest.mark.parametrize("stream", [0, 2])
async def test_a_later_stream_of_a_session_replaces_the_earlier_one(served: Served, stream: int) -> None:
    """An older agent does not number its streams: of these the latest to come counts."""
    older = await served.peers.agent("n1", stream=min(stream, 1))
    await served.peers.agent("n1", stream=stream)
    assert await older.ended() is grpc.StatusCode.OK
    await served.agent_is("n1", connected=True)


async def test_a_new_session_numbers_its_streams_anew(served: Served) -> None:
    await served.peers.agent("n1", session=10, stream=7)
    later = await served.peers.agent("n1", session=11, stream=1)
    await later.notices("n1")


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (None, grpc.StatusCode.UNAUTHENTICATED),
        ("forged", grpc.StatusCode.UNAUTHENTICATED),
        ("launcher", grpc.StatusCode.PERMISSION_DENIED),
        ("n2", grpc.StatusCode.PERMISSION_DENIED),
    ],
)
async def test_a_wrong_token_is_refused(served: Served, kind: str | None, code: grpc.StatusCode) -> None:
    tokens = served.peers.tokens
    agent = served.peers.stranger({"launcher": tokens.launcher("me"), "n2": tokens.agent("n2")}.get(kind or "", kind))
    with pytest.raises(grpc.aio.AioRpcError):
        await asyncio.gather(agent.say(hello=hello("n1")), agent.read("welcome"))
    assert await agent.ended() is code
    assert (await served.status())["agents"] == []


@pytest.mark.parametrize(
    "first",
    [
        wire.AgentMessage(),
        wire.AgentMessage(notice=noticed("n1")),
        wire.AgentMessage(hello=hello("n1", session=0)),
        wire.AgentMessage(hello=hello("n1", node_uid="")),
        wire.AgentMessage(hello=hello("n1", node_uid="u" * 254)),
        wire.AgentMessage(hello=hello("n1", node_uid="line\nline")),
        wire.AgentMessage(hello=hello("n1", notices=[noticed("n1")] * 1025)),
        wire.AgentMessage(hello=hello("n1", notices=[noticed("n2")])),
    ],
)
async def test_a_malformed_first_message_is_refused(served: Served, first: wire.AgentMessage) -> None:
    agent = served.peers.stranger(served.peers.tokens.agent("n1"))
    await agent.call.write(first)
    assert await agent.ended() is grpc.StatusCode.INVALID_ARGUMENT
    assert (await served.status())["agents"] == []


def changed(**changes: object) -> wire.NoticeReport:
    report = noticed("n1", 3)
    subject = wire.Subject(kind=wire.SUBJECT_KIND_POD, name="n1", uid="uid-n1")
    for name, value in changes.items():
        if isinstance(value, Timestamp):
            report.deadline.CopyFrom(value)
        elif name == "subject":
            report.subject.CopyFrom(subject)
        else:
            setattr(report, name, value)
    return report


@pytest.mark.parametrize(
    "report",
    [
        noticed("n2"),
        noticed("n1", uid="uid-n2"),
        noticed("n1", 0),
        noticed("n1", left=float("nan")),
        noticed("n1", left=float("inf")),
        changed(subject=None),
        changed(announcement=wire.ANNOUNCEMENT_UNSPECIFIED),
        changed(source=""),
        changed(source="meta\x00data"),
        changed(source="event"),
        changed(deadline=Timestamp(seconds=2**62)),
    ],
)
async def test_a_malformed_report_is_refused_and_stored_nowhere(served: Served, report: wire.NoticeReport) -> None:
    """About another node or machine, in the name of the API server, without an order, or with numbers that are none."""
    agent = await served.peers.agent("n1")
    await agent.say(notice=report)
    assert await agent.ended() is grpc.StatusCode.INVALID_ARGUMENT
    assert not served.store.snapshot().notices


async def test_seconds_that_are_beyond_reason_are_bounded(served: Served) -> None:
    agent = await served.peers.agent("n1")
    await agent.say(notice=noticed("n1", left=1e300))
    await agent.acknowledged(1)
    notice = served.notices()["n1"]
    assert notice.deadline is not None
    assert notice.deadline - notice.first_seen == 366 * 86400


async def test_an_agent_cannot_speak_about_another_node(served: Served) -> None:
    owner = await served.peers.agent("n1")
    await owner.notices("n1")
    impostor = await served.peers.agent("n2", node_uid="uid-n1", session=99)
    await impostor.say(notice=noticed("n1", 2, uid="uid-n1", withdrawn=True))
    assert await impostor.ended() is grpc.StatusCode.INVALID_ARGUMENT
    assert served.notices()["n1"].state is NoticeState.ACTIVE


async def test_an_oversized_message_is_refused(served: Served) -> None:
    agent = await served.peers.agent("n1")
    await agent.say(notice=changed(message="x" * 2 * 1024 * 1024))
    assert await agent.ended() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not served.store.snapshot().notices


async def test_a_second_hello_is_refused(served: Served) -> None:
    agent = await served.peers.agent("n1")
    await agent.say(hello=hello("n1"))
    assert await agent.ended() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_silent_agent_is_disconnected_and_its_sources_are_unknown(served: Served) -> None:
    agent = await served.peers.agent("n1", silent=True)
    known = await served.agent_is("n1", connected=True)
    assert known["sources"] == [{"source": "metadata", "state": "clear"}]
    lost = await served.agent_is("n1", connected=False)
    assert lost["sources"] == [{"source": "metadata", "state": "unknown"}]
    assert lost["silent_seconds"] >= 2 * HEARTBEAT, "silence is counted from the last message"
    assert await agent.ended() is grpc.StatusCode.OK
    assert not served.store.snapshot().notices


async def test_silence_is_counted_from_the_last_sign_of_life(served: Served) -> None:
    """An agent is lost whose connection broke some time after it had said something, and one that said goodbye."""
    lost = await served.peers.agent("lost", silent=True, heartbeat_seconds=600.0)
    heard = (await served.status())["now"]
    gone = await served.peers.agent("gone", silent=True, heartbeat_seconds=600.0)

    async def later() -> bool:
        return bool((await served.status())["now"] >= heard + 1.0)

    await until(later)
    lost.call.cancel()
    assert (await served.agent_is("lost", connected=False))["silent_seconds"] >= 1.0
    await gone.say(goodbye=wire.Goodbye(reason="the agent stops"))
    left = await served.agent_is("gone", connected=False)
    assert left["silent_seconds"] <= (await served.status())["now"] - heard - 1.0


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (4.4 * HEARTBEAT, 4 * HEARTBEAT),
        (0.0, HEARTBEAT),
        (HEARTBEAT / 2, HEARTBEAT),
        (1e9, 600.0),
        (float("inf"), 600.0),
        (float("nan"), HEARTBEAT),
        (-1.0, HEARTBEAT),
    ],
)
async def test_an_agent_is_told_a_pause_between_heartbeats_that_it_can_do_with(
    served: Served, asked: float, told: float
) -> None:
    """In whole turns of the supervisor's own timer."""
    agent = served.peers.stranger(served.peers.tokens.agent("n1"))
    await agent.say(hello=hello("n1", heartbeat_seconds=asked))
    welcome = await agent.read("welcome")
    assert (welcome.heartbeat_seconds, welcome.report_heartbeat_seconds) == (told, HEARTBEAT)


async def test_an_agent_may_be_silent_for_as_long_as_it_was_told(served: Served) -> None:
    """Another one, which asked for nothing, is given up meanwhile."""
    patient = await served.peers.agent("n1", silent=True, heartbeat_seconds=40 * HEARTBEAT)
    await served.peers.agent("n2", silent=True)
    await served.agent_is("n2", connected=False)
    await served.agent_is("n1", connected=True)
    await patient.say(notice=noticed("n1"))
    await patient.acknowledged(1)


async def test_an_agent_that_is_heard_stays_connected(served: Served) -> None:
    """Heartbeats go both ways, for longer than the silence that ends a stream."""
    agent = await served.peers.agent("n1", silent=True)
    for _ in range(4):
        await agent.read("heartbeat")
        await agent.say(heartbeat=wire.Heartbeat())
    await served.agent_is("n1", connected=True)


class SlowStore(SqliteStore):
    """Stores notices one by one, each when `go_on` is called."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._turns = asyncio.Semaphore(0)

    def go_on(self) -> None:
        self._turns.release()

    async def put_notice(self, key: NoticeId, change: NoticeChange) -> ReclaimNotice | None:
        await self._turns.acquire()
        return await super().put_notice(key, change)


async def test_an_agent_whose_notice_is_stored_slowly_stays_connected(tmp_path: Path) -> None:
    """Its heartbeats are read afterwards, however long the store takes."""
    async with serving(tmp_path, kept_in=SlowStore) as served:
        assert isinstance(served.store, SlowStore)
        agent = await served.peers.agent("n1")
        await agent.say(notice=noticed("n1"))
        for _ in range(5):
            await agent.read("heartbeat")
        served.store.go_on()
        await agent.acknowledged(1)
        await served.agent_is("n1", connected=True)


async def test_an_agent_hears_every_turn_while_its_notice_is_being_stored(tmp_path: Path) -> None:
    """Though it asked for heartbeats far apart: by them it knows that the supervisor does not hang."""
    async with serving(tmp_path, kept_in=SlowStore) as served:
        assert isinstance(served.store, SlowStore)
        agent = await served.peers.agent("n1", heartbeat_seconds=300.0)
        await agent.say(notice=noticed("n1"))
        for _ in range(4):
            await agent.read("heartbeat")
        served.store.go_on()
        await agent.acknowledged(1)
        await _hears_nothing_more(served, agent)


async def test_an_agent_hears_every_turn_while_its_notice_cannot_be_stored(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        agent = await served.peers.agent("n1", heartbeat_seconds=300.0)
        await full_disk(served.store, full=True)
        await agent.say(notice=noticed("n1"))
        for _ in range(4):
            await agent.read("heartbeat")
        await full_disk(served.store, full=False)
        await agent.acknowledged(1)
        await _hears_nothing_more(served, agent)


async def _hears_nothing_more(served: Served, agent: AgentPeer) -> None:
    """While another agent has a heartbeat every turn."""
    other = await served.peers.agent("n2")
    for _ in range(4):
        await other.read("heartbeat")
    await agent.say(goodbye=wire.Goodbye(reason="the test ends"))
    rest = 0
    async with asyncio.timeout(PATIENCE):
        while isinstance(await agent.call.read(), wire.SupervisorMessage):
            rest += 1
    # A turn may come between the acknowledgement and what follows it.
    assert rest <= 1


async def test_a_changed_source_is_known_at_once(served: Served) -> None:
    agent = await served.peers.agent("n1")
    for state, name in [
        (wire.SOURCE_STATE_NOTICED, "noticed"),
        (wire.SOURCE_STATE_CLEAR, "clear"),
        (wire.SOURCE_STATE_UNKNOWN, "unknown"),
    ]:
        await agent.say(source=wire.SourceReport(source="metadata", state=state))
        await agent.say(notice=noticed("n1", 1 + state))
        await agent.acknowledged(1 + state)
        known = await served.agent_is("n1", connected=True)
        assert known["sources"] == [{"source": "metadata", "state": name}]


async def test_a_new_machine_under_an_old_name_ends_the_old_notice(served: Served) -> None:
    agent = await served.peers.agent("n1")
    await agent.say(notice=noticed("n1"))
    await agent.acknowledged(1)
    await agent.say(goodbye=wire.Goodbye(reason="reclaimed"))
    await agent.ended()
    await served.peers.agent("n1", node_uid="uid-new", session=11)
    assert served.notices()["n1"].state is NoticeState.GONE


async def test_what_the_api_server_says_of_a_node_outlives_its_agents_hello(served: Served) -> None:
    said = replace(decided_notice(1), source=NODE_CONDITION, first_seen=time.time(), deadline=time.time() + 300.0)
    await served.store.put_notice(said.id, lambda _: said)
    await served.peers.agent("n1")
    assert served.notices()["n1"].state is NoticeState.ACTIVE


async def test_an_agent_that_lost_its_stream_a_moment_ago_is_not_gone(tmp_path: Path) -> None:
    """Long past the deadline, it is the silence since its last stream that counts, or since this supervisor began."""
    # It is back within it, however busy the machine is.
    grace = 5.0
    async with serving(tmp_path, gone_grace_seconds=grace) as served:
        agent = await served.peers.agent("n1")
        await agent.say(notice=noticed("n1", left=-grace))
        await agent.acknowledged(1)
        await agent.say(goodbye=wire.Goodbye(reason="for a moment"))
        await agent.ended()
        again = await served.peers.agent("n1")
        await again.read("heartbeat")
        assert served.notices()["n1"].state is NoticeState.ACTIVE
    async with serving(tmp_path, gone_grace_seconds=grace) as served:
        again = await served.peers.agent("n1")
        await again.read("heartbeat")
        assert served.notices()["n1"].state is NoticeState.ACTIVE
        again.call.cancel()
        await until(lambda: served.notices()["n1"].state is NoticeState.GONE)


async def test_agents_hear_goodbye_when_the_supervisor_stops(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        agent = await served.peers.agent("n1")
        farewell, _ = await asyncio.gather(agent.read("goodbye"), served.stop())
        assert farewell.reason == "the supervisor is stopping"
