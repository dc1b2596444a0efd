"""The stream to the supervisor, against a real gRPC server."""

import asyncio
import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from reclaim.v1 import reclaim_pb2 as pb

from node_agent.channel import SupervisorEndpoint
from node_agent.node import ThisNode
from node_agent.notices import (
    AnnouncementState,
    MachinePrice,
    NodeIdentity,
    NoticeReport,
    NoticeSubject,
    NoticeSubjectKind,
    NoticeUrgency,
    PollResult,
    ReportedSource,
    SourceName,
)
from node_agent.outbox import NoticeOutbox
from node_agent.stream import AgentReplaced, SupervisorUplink, encode_report
from servicekit.address import Address
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from tests.node_agent.fake_supervisor import FakeAgentService, acknowledgement, fake_supervisor
from tests.testkit.waiting import until

S = SourceName("s")
NODE = NoticeSubject(NoticeSubjectKind.NODE, "n1", "uid-1")


class HurriedClock(Clock):
    """A clock that a test sets forward."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


class UplinkAgent:
    """An uplink with all that it needs, run by the test."""

    def __init__(
        self,
        address: Address,
        token_file: Path,
        uid: str = NODE.uid,
        ca_file: Path | None = None,
        heartbeat: float = 5.0,
    ) -> None:
        self.clock = HurriedClock()
        self.bulkhead = Bulkhead(self.clock)
        self.outbox = NoticeOutbox(10)
        self.node = ThisNode(NODE.name, uid, on_described=self.outbox.changed.set)
        self.node.describe(NodeIdentity(""))  # As a source does that knows nothing of the machine.
        self.token_file = token_file
        self.uplink = SupervisorUplink(
            endpoint=SupervisorEndpoint(address, token_file, ca_file),
            node=self.node,
            outbox=self.outbox,
            clock=self.clock,
            heartbeat=heartbeat,
            version="1.2.3",
            bulkhead=self.bulkhead,
        )
        self.task: asyncio.Task[None] | None = None

    def start(self) -> "asyncio.Task[None]":
        self.task = asyncio.create_task(self.uplink.run())
        return self.task

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError, AgentReplaced):
                await self.task

    def report(self, revision: int = 1, seconds_left: float = 100.0) -> NoticeReport:
        deadline = self.clock.monotonic() + seconds_left
        return NoticeReport(
            S, NODE, revision, AnnouncementState.ACTIVE, deadline, datetime(2026, 1, 5, tzinfo=UTC), "m" * 600
        )


@pytest_asyncio.fixture
async def fake() -> AsyncIterator[FakeAgentService]:
    async with fake_supervisor() as supervisor:
        yield supervisor


@pytest_asyncio.fixture
async def agent(fake: FakeAgentService, tmp_path: Path) -> AsyncIterator[UplinkAgent]:
    token_file = tmp_path / "token"
    token_file.write_text("secret\n")
    subject = UplinkAgent(Address("127.0.0.1", fake.port), token_file)
    yield subject
    await subject.stop()


async def test_the_hello_says_everything(fake: FakeAgentService, agent: UplinkAgent) -> None:
    """Node, session, token, sources and notices, with durations counted when it is said."""
    before = time.time()
    agent.outbox.set_status(ReportedSource(S, PollResult.NOTICED, agent.clock.monotonic() - 2.0))
    agent.outbox.set_status(ReportedSource(SourceName("t"), PollResult.UNKNOWN, None, "d" * 600))
    agent.outbox.put(replace(agent.report(), deadline=agent.clock.monotonic() + 100.0))
    agent.outbox.put(NoticeReport(SourceName("t"), NODE, 3, AnnouncementState.WITHDRAWN))
    agent.start()
    await until(lambda: agent.uplink.welcomed)
    stream = fake.streams[0]
    hello = stream.hello
    assert stream.authorization == "Bearer secret"
    assert (hello.node, hello.node_uid, hello.agent_version) == ("n1", "uid-1", "1.2.3")
    assert (before - 5) * 1000 < hello.session <= time.time() * 1000
    noticed, unknown = hello.sources
    assert (noticed.source, noticed.state) == ("s", pb.SOURCE_STATE_NOTICED)
    assert 2.0 <= noticed.last_good_poll_age < 20.0
    assert (unknown.state, unknown.detail) == (pb.SOURCE_STATE_UNKNOWN, "d" * 512)
    assert not unknown.HasField("last_good_poll_age")
    active, withdrawn = hello.notices
    assert active.subject == pb.Subject(kind=pb.SUBJECT_KIND_NODE, name="n1", uid="uid-1")
    assert (active.source, active.revision, active.announcement) == ("s", 1, pb.ANNOUNCEMENT_ACTIVE)
    assert 80.0 < active.seconds_left <= 100.0
    assert active.deadline.ToDatetime(UTC) == datetime(2026, 1, 5, tzinfo=UTC)
    assert active.message == "m" * 512
    assert (withdrawn.revision, withdrawn.announcement) == (3, pb.ANNOUNCEMENT_WITHDRAWN)
    assert not withdrawn.HasField("seconds_left")


async def test_the_hello_describes_the_machine(fake: FakeAgentService, agent: UplinkAgent) -> None:
    """As far as it is known: no field is guessed."""
    agent.node.describe(NodeIdentity("", "r", "z", "t", "aliyun", MachinePrice.SPOT, "SpotAsPriceGo"))
    agent.start()
    await until(lambda: agent.uplink.welcomed)
    machine = fake.streams[0].hello.machine
    assert machine == pb.Machine(
        cloud="aliyun",
        region="r",
        zone="z",
        instance_type="t",
        price_class=pb.PRICE_CLASS_SPOT,
        spot_strategy="SpotAsPriceGo",
    )
    assert not machine.HasField("protected_seconds")


async def test_what_is_learned_later_is_an_update_on_the_stream(fake: FakeAgentService, agent: UplinkAgent) -> None:
    """Once; a fact that was known stays."""
    fake.machine_updates = True
    agent.start()
    await until(lambda: agent.uplink.welcomed)
    agent.node.describe(NodeIdentity("", zone="z-1"))
    await until(lambda: "machine" in fake.streams[0].kinds)
    agent.node.describe(NodeIdentity("", zone="z-2", region="r-2"))
    await until(lambda: fake.streams[0].kinds.count("machine") == 2)
    agent.outbox.put(agent.report())
    await until(lambda: not agent.outbox.unacknowledged())
    said = [message.machine for message in fake.streams[0].messages if message.WhichOneof("message") == "machine"]
    assert said == [pb.Machine(zone="z-1"), pb.Machine(zone="z-1", region="r-2")]
    assert len(fake.streams) == 1


async def test_what_is_learned_before_the_welcome_is_said_after_it(fake: FakeAgentService, agent: UplinkAgent) -> None:
    """Until the welcome, nobody knows what the supervisor understands."""
    fake.welcomes, fake.machine_updates = False, True
    agent.start()
    await until(lambda: fake.streams and fake.streams[0].messages)
    agent.node.describe(NodeIdentity("", zone="z-1"))
    agent.outbox.put(agent.report())
    await until(lambda: "notice" in fake.streams[0].kinds)
    assert fake.streams[0].kinds == ["hello", "notice"]
    fake.streams[0].say(pb.SupervisorMessage(welcome=pb.Welcome(heartbeat_seconds=2.0, machine_updates=True)))
    await until(lambda: "machine" in fake.streams[0].kinds)


async def test_an_older_supervisor_hears_of_it_in_another_hello(fake: FakeAgentService, agent: UplinkAgent) -> None:
    """With everything else, on a stream of its own; a fact that was known stays."""
    agent.start()
    await until(lambda: agent.uplink.welcomed)
    assert fake.streams[0].hello.machine == pb.Machine()
    agent.outbox.put(agent.report())
    agent.node.describe(NodeIdentity("", zone="z-1"))
    await until(lambda: len(fake.streams) == 2 and fake.streams[1].messages)
    assert fake.streams[0].kinds[-1] == "goodbye"
    agent.node.describe(NodeIdentity("", zone="z-2"))
    again = fake.streams[1].hello
    assert (again.machine.zone, again.session) == ("z-1", fake.streams[0].hello.session)
    assert [notice.source for notice in again.notices] == ["s"]


@pytest.mark.parametrize(
    ("notice_class", "said"),
    [
        (NoticeUrgency.SUDDEN, pb.NOTICE_CLASS_SUDDEN),
        (NoticeUrgency.SCHEDULED, pb.NOTICE_CLASS_SCHEDULED),
        (NoticeUrgency.HINT, pb.NOTICE_CLASS_HINT),
    ],
)
def test_a_report_says_its_class(notice_class: NoticeUrgency, said: int) -> None:
    hint = NoticeReport(S, NODE, 1, AnnouncementState.ACTIVE, notice_class=notice_class, cancellable=True)
    notice = encode_report(hint, 0.0)
    assert (notice.notice_class, notice.cancellable) == (said, True)
    assert not notice.HasField("seconds_left")


async def test_changes_follow_at_once(fake: FakeAgentService, agent: UplinkAgent) -> None:
    """A notice and a changed source are sent when they appear, each once."""
    fake.heartbeat = 60.0
    agent.start()
    await until(lambda: agent.uplink.welcomed)
    stream = fake.streams[0]
    agent.outbox.put(agent.report())
    await until(lambda: stream.notices)  # In half a heartbeat.
    agent.outbox.set_status(ReportedSource(S, PollResult.NOTICED, agent.clock.monotonic()))
    await until(lambda: "source" in stream.kinds)
    agent.outbox.put(agent.report(revision=2))
    await until(lambda: not agent.outbox.unacknowledged())
    assert stream.kinds == ["hello", "notice", "source", "notice"]
    assert [notice.revision for notice in stream.notices] == [1, 2]


async def test_an_acknowledged_notice_is_settled_and_still_told_to_the_next_stream(
    fake: FakeAgentService, agent: UplinkAgent
) -> None:
    """A hello repeats active notices, with the seconds that are left by then."""
    agent.outbox.put(agent.report(seconds_left=100.0))
    agent.start()
    await until(lambda: not agent.outbox.unacknowledged())
    fake.streams[0].say(grpc.StatusCode.UNAVAILABLE)
    await until(lambda: len(fake.streams) == 2 and fake.streams[1].messages)
    first, second = (stream.hello.notices[0] for stream in fake.streams)
    assert (second.revision, second.announcement) == (1, pb.ANNOUNCEMENT_ACTIVE)
    assert second.seconds_left < first.seconds_left


async def test_a_report_that_was_long_on_its_way_is_repeated_with_the_seconds_left_by_then(
    fake: FakeAgentService, agent: UplinkAgent
) -> None:
    """A busy supervisor counts them from when it reads the report. In a hello, and on a stream."""
    fake.acknowledges = False
    agent.outbox.put(agent.report(seconds_left=100.0))
    agent.start()
    await until(lambda: agent.uplink.welcomed)
    stream = fake.streams[0]
    agent.clock.ahead += 30.0
    stream.say(acknowledgement(*stream.hello.notices))
    await until(lambda: len(stream.notices) == 1)
    agent.clock.ahead += 30.0
    stream.say(acknowledgement(stream.notices[0]))
    await until(lambda: len(stream.notices) == 2)
    stream.say(acknowledgement(stream.notices[1]))
    # A state that follows in the stream shows that the agent did not repeat the report once more.
    agent.outbox.set_status(ReportedSource(S, PollResult.CLEAR))
    await until(lambda: "source" in stream.kinds)
    said = [*stream.hello.notices, *stream.notices]
    assert [notice.revision for notice in said] == [1, 1, 1]
    assert [100.0 - notice.seconds_left for notice in said] == pytest.approx([0.0, 30.0, 60.0], abs=15.0)


async def test_what_was_not_acknowledged_is_repeated(fake: FakeAgentService, agent: UplinkAgent) -> None:
    """A withdrawal leaves the outbox only when the supervisor has made it durable at its revision."""
    fake.acknowledges = False
    agent.start()
    await until(lambda: agent.uplink.welcomed)
    withdrawal = NoticeReport(S, NODE, 2, AnnouncementState.WITHDRAWN)
    agent.outbox.put(withdrawal)
    await until(lambda: fake.streams[0].notices)
    fake.streams[0].say(acknowledgement(pb.NoticeReport(source="s", subject=pb.Subject(uid="uid-1"), revision=1)))
    fake.streams[0].say(grpc.StatusCode.UNAVAILABLE)
    await until(lambda: len(fake.streams) == 2 and fake.streams[1].messages)
    assert fake.streams[1].hello.notices[0].revision == 2
    fake.streams[1].say(acknowledgement(*fake.streams[1].hello.notices))
    await until(lambda: not agent.outbox.unacknowledged())
    fake.streams[1].say(None)
    await until(lambda: len(fake.streams) == 3 and fake.streams[2].messages)
    assert not fake.streams[2].hello.notices


async def test_a_supervisor_that_is_away_is_found_when_it_is_back(
    fake: FakeAgentService, agent: UplinkAgent, tmp_path: Path
) -> None:
    """Connecting goes on for ever, and the token is read again each time."""
    agent.start()
    await until(lambda: agent.uplink.welcomed)
    assert fake.streams[-1].authorization == "Bearer secret"
    (tmp_path / "token").write_text("another")  # Before the agent calls again, which it may do at once.
    await fake.stop()
    await until(lambda: agent.uplink.fault.reason)
    assert not agent.uplink.welcomed
    agent.outbox.put(agent.report())
    await fake.start()
    await until(lambda: agent.uplink.welcomed)
    assert fake.streams[-1].authorization == "Bearer another"
    await until(lambda: not agent.outbox.unacknowledged())
    assert agent.uplink.fault.reason is None


async def test_heartbeats_keep_an_idle_stream(fake: FakeAgentService, agent: UplinkAgent) -> None:
    """The supervisor's interval is followed at once, not after the agent's own has passed."""
    fake.heartbeat = 0.4
    own = UplinkAgent(Address("127.0.0.1", fake.port), agent.token_file, heartbeat=60.0)
    own.start()
    try:
        await until(lambda: fake.streams and fake.streams[0].kinds.count("heartbeat") >= 5)
        assert len(fake.streams) == 1
    finally:
        await own.stop()


async def test_a_hello_says_how_far_apart_heartbeats_may_be(fake: FakeAgentService, agent: UplinkAgent) -> None:
    own = UplinkAgent(Address("127.0.0.1", fake.port), agent.token_file, heartbeat=300.0)
    own.start()
    try:
        await until(lambda: own.uplink.welcomed)
        assert fake.streams[0].hello.heartbeat_seconds == 300.0
    finally:
        await own.stop()


async def test_a_silent_supervisor_is_left(fake: FakeAgentService, agent: UplinkAgent) -> None:
    fake.answers_heartbeats, fake.heartbeat = False, 0.05
    agent.start()
    await until(lambda: len(fake.streams) >= 2)
    assert agent.uplink.fault.reason is None or "no message" in agent.uplink.fault.reason
    await until(lambda: fake.streams[0].over)


@pytest.mark.parametrize("is_early", [True, False], ids=["in the hello", "while the agent reads"])
async def test_a_supervisor_that_hangs_is_left_while_a_report_waits(
    fake: FakeAgentService, agent: UplinkAgent, *, is_early: bool
) -> None:
    """However far apart heartbeats are; the report is repeated at once."""
    fake.acknowledges, fake.heartbeat, fake.report_heartbeat = False, 60.0, 0.3
    if is_early:
        agent.outbox.put(agent.report())
    agent.start()
    await until(lambda: agent.uplink.welcomed)
    if not is_early:
        agent.outbox.put(agent.report())
    await until(lambda: agent.uplink.fault.reason)
    assert agent.uplink.fault.reason is not None
    assert agent.uplink.fault.reason.startswith("no message for 0.9 s while a report waits")
    await until(lambda: len(fake.streams) >= 2 and fake.streams[1].messages)
    assert [notice.source for notice in fake.streams[1].hello.notices] == ["s"]
    await until(lambda: fake.streams[0].over)
    assert "heartbeat" not in fake.streams[0].kinds


async def test_a_supervisor_that_stores_a_report_slowly_is_not_left(fake: FakeAgentService, agent: UplinkAgent) -> None:
    """Its heartbeats are enough, for longer than its silence may last."""
    fake.acknowledges, fake.heartbeat, fake.report_heartbeat = False, 0.5, 0.5
    agent.outbox.put(agent.report())
    agent.start()
    await until(lambda: fake.streams and fake.streams[0].kinds.count("heartbeat") >= 5)
    assert agent.outbox.unacknowledged()
    assert len(fake.streams) == 1


async def test_once_its_report_is_acknowledged_an_agent_is_as_patient_as_before(
    fake: FakeAgentService, agent: UplinkAgent
) -> None:
    """The second heartbeat is later than the silence that would end the stream while a report waits."""
    fake.heartbeat, fake.report_heartbeat, fake.answers_heartbeats = 1.0, 0.3, False
    agent.start()
    await until(lambda: agent.uplink.welcomed)
    agent.outbox.put(agent.report())
    await until(lambda: fake.streams[0].kinds.count("heartbeat") >= 2)
    assert len(fake.streams) == 1


@pytest.mark.parametrize("heartbeat", [0.0, 0.001, -1.0, float("inf"), float("nan")])
async def test_an_older_supervisor_may_be_silent_while_a_report_waits(
    fake: FakeAgentService, agent: UplinkAgent, heartbeat: float
) -> None:
    """For three usual heartbeats, as before; also one that says something impossible."""
    fake.acknowledges, fake.answers_heartbeats = False, False
    fake.heartbeat, fake.report_heartbeat = 0.5, heartbeat
    agent.outbox.put(agent.report())
    agent.start()
    await until(lambda: len(fake.streams) >= 2)
    assert fake.streams[0].kinds.count("heartbeat") >= 2


@pytest.mark.parametrize("heartbeat", [0.0, 0.001, -1.0, 1e9, float("inf"), float("nan")])
async def test_an_impossible_heartbeat_is_not_followed(
    fake: FakeAgentService, agent: UplinkAgent, heartbeat: float
) -> None:
    fake.heartbeat = heartbeat
    own = UplinkAgent(Address("127.0.0.1", fake.port), agent.token_file, heartbeat=0.5)
    own.start()
    try:
        await until(lambda: own.uplink.welcomed)
        before = time.monotonic()
        await until(lambda: fake.streams[0].kinds.count("heartbeat") >= 2)
        assert time.monotonic() - before >= 0.4
    finally:
        await own.stop()


async def test_what_waits_for_acknowledgement_is_said_once_a_stream(fake: FakeAgentService, agent: UplinkAgent) -> None:
    """Other changes do not repeat a notice that was sent and is not acknowledged yet."""
    fake.heartbeat, fake.acknowledges = 30.0, False
    agent.outbox.put(agent.report())
    agent.start()
    await until(lambda: agent.uplink.welcomed)
    stream = fake.streams[0]
    agent.outbox.put(replace(agent.report(), source=SourceName("t")))
    await until(lambda: len(stream.messages) >= 2)
    agent.outbox.set_status(ReportedSource(S, PollResult.NOTICED, agent.clock.monotonic()))
    await agent.stop()
    await until(lambda: stream.over)
    assert stream.kinds == ["hello", "notice", "source", "goodbye"]
    assert [notice.source for notice in stream.notices] == ["t"]


async def test_a_supervisor_that_never_welcomes_leaves_the_agent_unready(
    fake: FakeAgentService, agent: UplinkAgent
) -> None:
    fake.welcomes = False
    agent.start()
    await until(lambda: fake.streams and fake.streams[0].messages)
    assert not agent.uplink.welcomed


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.CANCELLED,
    ],
)
async def test_refusals_are_reported_and_tried_again(
    fake: FakeAgentService, agent: UplinkAgent, code: grpc.StatusCode
) -> None:
    """Whatever the status, the agent says why it is unready and goes on."""
    fake.refusal = code
    agent.start()
    # Not the first reason for certain: gRPC itself says INTERNAL where a write meets the refusal, 2 times in 600.
    await until(lambda: code.name in str(agent.uplink.fault.reason))
    await until(lambda: len(fake.streams) >= 2)
    fake.refusal = None
    await until(lambda: agent.uplink.welcomed)


async def test_a_goodbye_of_the_supervisor_is_followed_by_a_new_stream(
    fake: FakeAgentService, agent: UplinkAgent
) -> None:
    """A supervisor that stops on purpose is met again when it is back."""
    agent.start()
    await until(lambda: agent.uplink.welcomed)
    fake.streams[0].say(pb.SupervisorMessage(goodbye=pb.Goodbye(reason="upgrade")))
    await until(lambda: len(fake.streams) == 2)


async def test_each_stream_of_a_session_has_a_higher_number(fake: FakeAgentService, agent: UplinkAgent) -> None:
    """By it the supervisor knows a hello that arrives after the one of a later stream."""
    agent.start()
    for number in (1, 2, 3):
        await until(partial(_has_said_hello, fake, number))
        assert fake.streams[-1].hello.stream == number
        fake.streams[-1].say(grpc.StatusCode.UNAVAILABLE)


def _has_said_hello(fake: FakeAgentService, streams: int) -> bool:
    return len(fake.streams) == streams and bool(fake.streams[-1].messages)


async def test_an_agent_that_was_replaced_ends(fake: FakeAgentService, agent: UplinkAgent) -> None:
    """Superseded after a welcome means that a newer agent speaks for this node."""
    task = agent.start()
    await until(lambda: agent.uplink.welcomed)
    fake.streams[0].say(pb.SupervisorMessage(superseded=pb.Superseded(session=2**60)))
    async with asyncio.timeout(30):
        with pytest.raises(AgentReplaced):
            await task
    await until(lambda: fake.streams[0].over)
    assert len(fake.streams) == 1


async def test_an_agent_that_was_replaced_while_away_ends(fake: FakeAgentService, agent: UplinkAgent) -> None:
    task = agent.start()
    await until(lambda: agent.uplink.welcomed)
    fake.least_session = 2**60
    fake.streams[0].say(grpc.StatusCode.UNAVAILABLE)
    async with asyncio.timeout(30):
        with pytest.raises(AgentReplaced):
            await task


async def test_a_clock_that_went_back_raises_the_session(fake: FakeAgentService, agent: UplinkAgent) -> None:
    """Superseded before any welcome: hello again, one above the session that is known."""
    fake.least_session = 2**60
    agent.start()
    await until(lambda: fake.streams and fake.streams[0].over)
    await until(lambda: agent.uplink.welcomed)
    assert [stream.hello.session for stream in fake.streams[1:]] == [2**60 + 1]


async def test_stopping_says_what_is_left_and_goodbye(fake: FakeAgentService, agent: UplinkAgent) -> None:
    """A notice that came last goes out before the goodbye, and the stream ends cleanly and fast."""
    agent.start()
    await until(lambda: agent.uplink.welcomed)
    agent.outbox.put(agent.report())
    before = time.monotonic()
    await agent.stop()
    assert time.monotonic() - before < 15.0
    await until(lambda: fake.streams[0].over)
    assert fake.streams[0].kinds[-2:] == ["notice", "goodbye"]


async def test_stopping_does_not_wait_for_a_server_that_hangs(tmp_path: Path) -> None:
    """Something that accepts and never answers delays the end by the bound of a goodbye at most."""
    with socket.create_server(("127.0.0.1", 0)) as hung:
        token_file = tmp_path / "token"
        token_file.write_text("secret")
        agent = UplinkAgent(Address("127.0.0.1", hung.getsockname()[1]), token_file)
        agent.start()
        await asyncio.sleep(0.1)
        before = time.monotonic()
        await agent.stop()
        assert time.monotonic() - before < 15.0


async def test_nothing_is_said_before_the_node_is_known(fake: FakeAgentService, agent: UplinkAgent) -> None:
    """The hello waits for the machine's id and goes out as soon as it is there."""
    anonymous = UplinkAgent(Address("127.0.0.1", fake.port), agent.token_file, uid="")
    anonymous.start()
    try:
        # Another agent's whole welcome passes meanwhile.
        agent.start()
        await until(lambda: agent.uplink.welcomed)
        assert len(fake.streams) == 1
        anonymous.node.resolve(NodeIdentity("i-7"))
        await until(lambda: anonymous.uplink.welcomed)
        assert fake.streams[1].hello.node_uid == "i-7"
    finally:
        await anonymous.stop()


@pytest.mark.parametrize("content", [None, "", "two words", "n\xfcll", "a\x00b"])
async def test_a_missing_or_bad_token_is_waited_for(
    fake: FakeAgentService, agent: UplinkAgent, content: str | None
) -> None:
    """A token that is not there yet is read again at the next attempt; what is none is never sent."""
    agent.token_file.unlink()
    if content is not None:
        agent.token_file.write_text(content)
    agent.start()
    await until(lambda: agent.uplink.fault.reason)
    assert str(agent.token_file) in str(agent.uplink.fault.reason)
    assert not fake.streams
    agent.token_file.write_text("secret")
    await until(lambda: agent.uplink.welcomed)


async def test_a_proxy_of_the_environment_is_not_used(
    fake: FakeAgentService, agent: UplinkAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token does not travel through a proxy that is meant for downloads."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    agent.start()
    await until(lambda: agent.uplink.welcomed)
    assert len(fake.streams) == 1


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
async def test_tls_trusts_the_ca_file_alone(fake: FakeAgentService, agent: UplinkAgent, tmp_path: Path) -> None:
    """A stranger's certificate gets no token; the file is read again, so a new CA needs no restart."""
    key, certificate = _certificate(tmp_path, "own")
    _, stranger = _certificate(tmp_path, "stranger")
    await fake.stop()
    await fake.start(grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())]))
    ca_file = tmp_path / "ca.crt"
    ca_file.write_bytes(stranger.read_bytes())
    secured = UplinkAgent(Address("localhost", fake.port), agent.token_file, ca_file=ca_file)
    secured.start()
    try:
        await until(lambda: secured.uplink.fault.reason)
        assert not fake.streams
        ca_file.write_bytes(certificate.read_bytes())
        await until(lambda: secured.uplink.welcomed)
        assert fake.streams[0].authorization == "Bearer secret"
    finally:
        await secured.stop()


def _certificate(directory: Path, name: str) -> tuple[Path, Path]:
    key, certificate = directory / f"{name}.key", directory / f"{name}.crt"
    what = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "1", "-nodes"]
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", "req", "-x509", *kind, *what, *files], check=True, capture_output=True)  # noqa: S607 - whichever openssl there is
    return key, certificate
