"""Messages with a good token behind them that are late, repeated, wrong or monstrous: refused, counted, forgotten."""

from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from reclaim.v1 import reclaim_pb2 as wire
from structlog.testing import capture_logs

from supervisor.domain.notice import NoticeState
from tests.hostile.hostile_world import JOB, NODES, Bystander, agent_refused, counted, refused, said
from tests.testkit.serving import AgentPeer, PeerRefusal, ProcessPeer, Served, hello, launcher_hello, noticed

STREAM = "/v1/launchers/stream"
REPORT = "/v1/launchers/report"
PROCESSES = "/v1/processes/stream"
ANSWERS = "/v1/processes/report"
MALFORMED = (grpc.StatusCode.INVALID_ARGUMENT, "malformed")
MANY = (grpc.StatusCode.RESOURCE_EXHAUSTED, "too_many")

pytestmark = pytest.mark.usefixtures("bystander")


def source(name: str) -> wire.AgentMessage:
    return wire.AgentMessage(source=wire.SourceReport(source=name, state=wire.SOURCE_STATE_CLEAR))


def reported(**changes: Any) -> wire.AgentMessage:
    """A notice on node n1."""
    report = noticed("n1")
    for name, value in changes.items():
        setattr(report, name, value)
    return wire.AgentMessage(notice=report)


@pytest.mark.parametrize(
    ("messages", "refusal"),
    [
        ([reported()], MALFORMED),
        ([said("n1", session=2**63)], MALFORMED),
        ([said("n1", stream=2**63)], MALFORMED),
        ([said("n1", session=2**64 - 1)], MALFORMED),
        ([said("n1"), said("n1")], MALFORMED),
        ([said("n1"), reported(revision=2**63)], MALFORMED),
        ([said("n1"), reported(seconds_left=float("nan"))], MALFORMED),
        ([said("n1"), reported(seconds_left=float("-inf"))], MALFORMED),
        ([said("n1"), reported(source="\x1b[2J")], MALFORMED),
        ([said("n1"), source("\u202eecruos")], MALFORMED),
        ([said("n1"), wire.AgentMessage(notice=noticed(NODES[0]))], MALFORMED),
        ([said("n1"), *(source(f"source {number}") for number in range(16))], MANY),
    ],
)
async def test_an_agent_that_says_what_no_agent_says_is_refused(
    served: Served, messages: list[wire.AgentMessage], refusal: tuple[grpc.StatusCode, str]
) -> None:
    before, stored = await refused(served), served.store.snapshot()
    assert await agent_refused(served.peers, served.peers.tokens.agent("n1"), *messages) == refusal
    await counted(served, before, **{f"grpc_{refusal[1]}": 1})
    assert served.store.snapshot() is stored


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("data", [b"\xff" * 64, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x03\x0a\x01\xff"])
async def test_bytes_that_are_no_message_are_refused(served: Served, data: bytes, first: bool) -> None:  # noqa: FBT001
    before = await refused(served)
    async with grpc.aio.insecure_channel(served.peers.grpc) as channel:
        connect: Any = channel.stream_stream(
            "/reclaim.v1.ReclaimService/Connect", None, response_deserializer=wire.SupervisorMessage.FromString
        )
        call = connect(metadata=(("authorization", f"Bearer {served.peers.tokens.agent('n1')}"),))
        if not first:
            await call.write(said("n1").SerializeToString())
        await call.write(data)
        assert await AgentPeer(call).ended() is grpc.StatusCode.INVALID_ARGUMENT
    await counted(served, before, grpc_malformed=1)


async def test_a_call_that_does_not_exist_is_refused(served: Served) -> None:
    before = await refused(served)
    async with grpc.aio.insecure_channel(served.peers.grpc) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await channel.unary_unary("/reclaim.v1.ReclaimService/Destroy", None, None)(b"")
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert await served.peers.post("/v2/anything", None, {}) == PeerRefusal(404, "unknown_call")
    assert await served.peers.post("/v1/status", None, {}) == PeerRefusal(405, "unknown_call")
    await counted(served, before, grpc_unknown_call=1, http_unknown_call=2)


async def test_late_reports_change_nothing_and_are_counted(served: Served) -> None:
    """Of an older revision or session; one that is only repeated is no refusal."""
    agent = await served.peers.agent("n1", session=20)
    await agent.notices("n1", revision=5)
    before, stored = await refused(served), served.store.snapshot()
    await agent.notices("n1", revision=5)
    await agent.notices("n1", revision=4, withdrawn=True)
    await counted(served, before, grpc_older_revision=1)
    older = served.peers.stranger(served.peers.tokens.agent("n1"))
    await older.say(hello=hello("n1", session=19, notices=[noticed("n1", 9, withdrawn=True)]))
    assert (await older.read("superseded")).session == 20
    await counted(served, before, grpc_older_revision=1, grpc_older_session=1)
    assert served.store.snapshot() is stored
    assert served.notices()["n1"].state is NoticeState.ACTIVE


HELLO = launcher_hello("mallory", ["n1"])
WHO = {"process": "p", "host": "n1", "rank": 0}
ANSWER = {**WHO, "run": 1, "generation": 1, "kind": "left"}
DEEP = b'{"job":' + b"[" * 15000
WRONG_BODIES = [
    b"",
    b"null",
    b"[]",
    b'"text"',
    b"{}",
    b"\xff\xfe{}",
    b"\x1f\x8b\x08\x00",
    "{}".encode("utf-16"),
    b'{"job": "\xc3\x28"}',
    b'{"job": "\\ud800"}',
    b'{"process": NaN}',
    b'{"rank": 1e999}',
    DEEP,
]


@pytest.mark.parametrize("path", [STREAM, REPORT, PROCESSES, ANSWERS])
async def test_a_body_that_is_no_message_is_refused(served: Served, bystander: Bystander, path: str) -> None:
    """Empty, of another shape or encoding, with numbers that are none, or nested without end."""
    before = await refused(served)
    token = bystander.launcher.token if "launchers" in path else bystander.process.token
    found = [await served.peers.post(path, token, body) for body in WRONG_BODIES]
    assert found == [PeerRefusal(400, "malformed")] * len(WRONG_BODIES)
    await counted(served, before, http_malformed=len(WRONG_BODIES))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (STREAM, {**HELLO, "job": "UPPER"}),
        (STREAM, {**HELLO, "job": "line\n"}),
        (STREAM, {**HELLO, "max_wait_seconds": -1}),
        (STREAM, {**HELLO, "max_wait_seconds": 1e300}),
        (STREAM, {**HELLO, "max_workers": 10**30}),
        (STREAM, {**HELLO, "min_workers": True}),
        (STREAM, {**HELLO, "framework": "x" * 100_000}),
        (STREAM, {**HELLO, "launcher_host": "\x1b[2J"}),
        (STREAM, {**HELLO, "report": {**HELLO["report"], "hosts": [f"n{number}" for number in range(10_001)]}}),
        (STREAM, {**HELLO, "report": {**HELLO["report"], "hosts": ["n1\u202e"]}}),
        (REPORT, {"job": JOB, "instance": "instance-1", **HELLO["report"], "run": 2**40}),
        (REPORT, {"job": JOB, "instance": "instance-1", **HELLO["report"], "exit_code": 0.5}),
        (PROCESSES, {**WHO, "pid": 1, "host": "n1\n[info] all is well"}),
        (PROCESSES, {**WHO, "pid": -1}),
        (ANSWERS, {**ANSWER, "generation": 2**60}),
        (ANSWERS, {**ANSWER, "process": "\x00"}),
        (ANSWERS, {**ANSWER, "step": -1}),
    ],
)
async def test_a_field_beyond_its_bounds_is_refused(
    served: Served, bystander: Bystander, path: str, body: dict[str, Any]
) -> None:
    """Also one that would only be shown to people."""
    before, stored = await refused(served), served.store.snapshot()
    token = bystander.launcher.token if "launchers" in path else bystander.process.token
    assert await served.peers.post(path, token, body) == PeerRefusal(400, "malformed")
    await counted(served, before, http_malformed=1)
    assert served.store.snapshot() is stored


async def test_a_body_without_end_is_refused(served: Served, bystander: Bystander) -> None:
    """At its limit, whatever length it announces, and also when it arrives in chunks."""
    before = await refused(served)
    sizes = [(REPORT, bystander.launcher.token, 1024 * 1024), (ANSWERS, bystander.process.token, 16 * 1024)]
    for path, token, most in sizes:
        assert await served.peers.post(path, token, b" " * (most + 1)) == PeerRefusal(413, "oversized")
    await counted(served, before, http_oversized=2)


async def test_a_body_that_would_unpack_to_more_is_not_unpacked(served: Served, bystander: Bystander) -> None:
    before = await refused(served)
    headers = {"Authorization": f"Bearer {bystander.process.token}", "Content-Encoding": "deflate"}
    async with served.peers.session.post(
        served.peers.http + ANSWERS, headers=headers, data=b"\x78\x9c\x4b\x04\x00", compress=False
    ) as response:
        assert (response.status, (await response.json())["error"]) == (400, "malformed")
    await counted(served, before, http_malformed=1)


async def test_unknown_fields_are_ignored(served: Served, bystander: Bystander) -> None:
    before = await refused(served)
    body = {**bystander.launcher.report, "mood": ["fine"] * 1000}
    assert await served.peers.post(REPORT, bystander.launcher.token, body) == PeerRefusal(200, None)
    body = {**bystander.process.who, "run": 1, "generation": 0, "kind": "rank", "mood": {}}
    assert await served.peers.post(ANSWERS, bystander.process.token, body) == PeerRefusal(200, None)
    await counted(served, before)


@dataclass(frozen=True, slots=True)
class Stopped:
    """Rank 0 of a job that is stopped, and the line that told it so."""

    process: ProcessPeer
    line: dict[str, Any]


async def stopped(served: Served) -> Stopped:
    agent = await served.peers.agent("n1")
    _, order = await served.peers.running("other", ["n1"])
    process = await served.peers.process(order["token"], "n1", 0)
    await agent.notices("n1")
    return Stopped(process, await process.lines.matching(directive="STOP"))


async def test_an_answer_to_what_was_never_said_acknowledges_nothing(served: Served, bystander: Bystander) -> None:
    for generation in (bystander.generation, 10**9):
        assert await bystander.process.reports("left", {"run": 1, "generation": generation}) == PeerRefusal(200, None)
        assert served.job(JOB).observed.acknowledgement is None
    stop = await stopped(served)
    await stop.process.reports("left", {"run": 1, "generation": 10**9})
    assert served.job("other").observed.acknowledgement is None
    await stop.process.reports("left", stop.line)
    assert served.job("other").observed.acknowledgement is not None


async def test_answers_that_change_nothing_fill_no_log(served: Served, bystander: Bystander) -> None:
    """Nor read as if they had counted: to no STOP, of a generation that was never said, or said again."""
    with capture_logs() as lines:
        for generation in (bystander.generation, 10**6, *range(50)):
            said = {"run": 1, "generation": generation}
            assert await bystander.process.reports("left", said) == PeerRefusal(200, None)
        stop = await stopped(served)
        for _ in range(20):
            for kind in ("saved", "left"):
                await stop.process.reports(kind, stop.line)
                await stop.process.reports(kind, {**stop.line, "generation": 10**6})
    answers = [(line["job"], line["kind"]) for line in lines if line["event"] == "directive.acknowledged"]
    assert answers == [("other", "saved")]


async def test_what_an_agent_says_to_people_is_one_line(served: Served) -> None:
    """Its message is kept, with a space for whatever commands a terminal or begins a new line."""
    agent = await served.peers.agent("n1")
    said = noticed("n1")
    said.message = "x\r\nFAKE row\x1b[2J\u202e\t" + "y" * 600
    await agent.say(notice=said)
    await agent.acknowledged(1)
    message = served.notices()["n1"].message
    assert message.startswith("x  FAKE row [2J  y")
    assert len(message) == 512
