"""A supervisor accepts an arbitrary message for exactly what it means, or refuses it without effect."""

import asyncio
import contextlib
import itertools
import json
import math
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode, urlsplit

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from reclaim.v1 import reclaim_pb2 as wire

from supervisor.domain.job import Phase
from supervisor.domain.notice import Announcement, NoticeState, SubjectKind
from supervisor.ingest.agent_registry import SourceState
from supervisor.ingest.agent_reports import read_hello, read_report
from supervisor.ingest.errors import MalformedError
from tests.hostile.hostile_fuzz import SMALL_AND_LARGE, mostly, spoken, texts
from tests.hostile.hostile_world import Bystander, refused
from tests.testkit.properties import examples
from tests.testkit.serving import AgentPeer, Lines, Served, launcher_hello
from tests.testkit.waiting import PATIENCE, until

REFUSALS = {
    400: {"malformed"},
    403: {"foreign_token"},
    404: {"unknown_job", "unknown_relay"},
    409: {"name_is_live", "run_is_over", "older_revision"},
    413: {"oversized"},
}
COUNT = 2**31
NODE = "node"
STATUSES = {grpc.StatusCode.OK, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED}
OF_A_FAILED_WRITE = {*STATUSES, grpc.StatusCode.INTERNAL}
sessions = itertools.count(1)


names = st.sampled_from([NODE, "uid-node", "metadata", "other"]) | texts.filter(lambda text: "\ud800" not in text)
whole = st.sampled_from([0, 1, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)
# An enum's number that nobody has named yet goes over the wire like any other.
enums: Any = st.integers(-1, 4) | st.integers(-(2**31), 2**31 - 1)
timestamps = st.builds(
    Timestamp,
    seconds=st.integers(-(2**63), 2**63 - 1) | st.just(1_800_000_000),
    nanos=st.integers(-(2**31), 2**31 - 1) | st.just(0),
)
pods = names | st.builds("{}/{}".format, names, names) | st.just("space/" + "p" * 254) | st.just("s" * 64 + "/pod")
subjects = st.builds(wire.Subject, kind=st.just(wire.SUBJECT_KIND_NODE) | enums, name=pods, uid=names)
own_subject = wire.Subject(kind=wire.SUBJECT_KIND_NODE, name=NODE, uid="uid-node")
own_pod = wire.Subject(kind=wire.SUBJECT_KIND_POD, name="space/pod", uid="uid-pod")
notices = st.builds(
    wire.NoticeReport,
    source=mostly("metadata", names),
    subject=st.sampled_from([own_subject, own_pod]) | subjects,
    revision=mostly(1, whole),
    announcement=mostly(wire.ANNOUNCEMENT_ACTIVE, st.just(wire.ANNOUNCEMENT_WITHDRAWN) | enums),
    seconds_left=st.none() | st.floats(),
    deadline=mostly(None, timestamps),
    message=names,
)
sources = st.builds(
    wire.SourceReport,
    source=mostly("metadata", names),
    state=mostly(wire.SOURCE_STATE_CLEAR, enums),
    last_good_poll_age=st.none() | st.floats(),
    detail=names,
    about=mostly(wire.SUBJECT_KIND_UNSPECIFIED, st.just(wire.SUBJECT_KIND_POD) | enums),
)
machines = st.builds(
    wire.Machine,
    cloud=mostly("aws", names),
    region=names,
    zone=mostly("z", names),
    instance_type=names,
    price_class=enums,
    spot_strategy=names,
    protected_seconds=st.none() | st.floats(),
)
hellos = st.builds(
    wire.Hello,
    node=mostly(NODE, names),
    node_uid=mostly("uid-node", names),
    session=mostly(1, whole),
    agent_version=names,
    machine=mostly(wire.Machine(), machines),
    sources=mostly([wire.SourceReport(source="s")] * 16, st.lists(sources, max_size=17)),
    notices=mostly(1, st.just(1025)).flatmap(
        lambda count: st.lists(notices, max_size=3) if count == 1 else st.just([wire.NoticeReport()] * count)
    ),
)
messages = st.one_of(
    st.builds(wire.AgentMessage, notice=notices),
    st.builds(wire.AgentMessage, source=sources),
    st.builds(wire.AgentMessage, hello=hellos),
    st.builds(wire.AgentMessage, machine=machines),
    st.just(wire.AgentMessage(heartbeat=wire.Heartbeat())),
    st.just(wire.AgentMessage()),
)


@examples(200)
@given(hellos)
def test_a_hello_is_a_view_of_its_agent_or_malformed(hello: wire.Hello) -> None:
    """And each notice in it a report about that node, or about a pod by namespace and name."""
    try:
        view = read_hello(hello, 0.0)
        understood = [read_report(each, view) for each in hello.notices]
    except MalformedError:
        return
    assert view.session == hello.session > 0
    assert all(
        0 < len(name) <= 253 and name.isprintable() for name in (view.node, view.uid, *view.sources, *view.pod_sources)
    )
    assert {*view.sources.values(), *view.pod_sources.values()} <= set(SourceState)
    for each in understood:
        subject = each.subject
        if subject.kind is SubjectKind.NODE:
            assert (subject.name, subject.uid) == (view.node, view.uid)
        else:
            namespace, name = subject.name.split("/")
            assert 0 < len(namespace) <= 63
            assert 0 < len(name) <= 253
            assert all(text.isprintable() for text in (subject.name, subject.uid))
        assert each.announcement in Announcement
        assert each.revision > 0
        assert len(each.message) <= 512
        assert each.seconds_left is None or math.isfinite(each.seconds_left)


@examples(60)
@given(hellos, st.lists(messages, max_size=4))
async def test_an_agent_says_anything(served: Served, hello: wire.Hello, rest: list[wire.AgentMessage]) -> None:
    """What is refused is refused with its status, and all that is kept is about the agent's own node, or a pod."""
    hello.session = next(sessions) if hello.session else 0
    before = reports(served)
    agent = served.peers.stranger(served.peers.tokens.agent(NODE))
    # To whom a write fails, gRPC reports INTERNAL, and not the status that came.
    known = STATUSES if await says_all(agent, wire.AgentMessage(hello=hello), *rest) else OF_A_FAILED_WRITE
    heard, status = await until_the_end(agent)
    assert status in known
    reported = {notice_id(each) for each in (*hello.notices, *(message.notice for message in rest))}
    assert {entry.notice_id for each in heard for entry in each.acknowledgement.entries} <= reported
    if not heard:
        assert reports(served) == before
    for notice in served.store.snapshot().notices.values():
        assert notice.subject.kind is SubjectKind.POD or notice.subject.name == NODE
        assert notice.state in NoticeState
        assert notice.deadline is None or math.isfinite(notice.deadline)
    assert {each["node"] for each in (await served.status())["agents"]} <= {NODE}
    await no_fault_of_the_servers(served)


def reports(served: Served) -> set[tuple[str, int, int, str]]:
    """What is durable of what was said; whether its time has come is not an agent's word."""
    return {(each.id, each.session, each.revision, each.message) for each in served.store.snapshot().notices.values()}


async def says_all(agent: AgentPeer, *messages: wire.AgentMessage) -> bool:
    """Whether all of it could be written before the supervisor ended the stream."""
    try:
        for message in messages:
            await agent.call.write(message)
        await agent.call.done_writing()
    except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
        return False
    return True


async def until_the_end(agent: AgentPeer) -> tuple[list[wire.SupervisorMessage], grpc.StatusCode]:
    """All that the supervisor says, and the status with which it ends."""
    heard = []
    async with asyncio.timeout(PATIENCE):
        with contextlib.suppress(grpc.aio.AioRpcError):
            while isinstance(message := await agent.call.read(), wire.SupervisorMessage):
                heard.append(message)
        status: grpc.StatusCode = await agent.call.code()
    return heard, status


def notice_id(message: wire.NoticeReport) -> str:
    return f"{message.source}/{message.subject.uid}"


@dataclass(frozen=True, slots=True)
class Caller:
    served: Served
    token: str

    async def says(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """The status, and the answer or the first line of it. The stream of a relay has none before a process joins."""
        headers = {"Authorization": f"Bearer {self.token}"}
        async with self.served.peers.session.post(self.served.peers.http + path, headers=headers, data=body) as answer:
            if answer.status == HTTPStatus.OK and path == "/v1/relays/stream":
                return answer.status, {}
            said = await answer.content.readline()
            return answer.status, json.loads(said)

    async def is_understood_or_refused(self, path: str, body: bytes) -> bool:
        """Whether it is accepted; where it is not, that is said and nothing has changed."""
        before = told(self.served)
        status, answer = await self.says(path, body)
        if status != HTTPStatus.OK:
            assert answer["error"] in REFUSALS[status]
            assert answer["message"]
            assert told(self.served) == before
        return status == HTTPStatus.OK


def told(served: Served) -> dict[str, tuple[Any, Any]]:
    return {name: (job.spec, job.observed) for name, job in served.store.snapshot().jobs.items()}


async def no_fault_of_the_servers(served: Served) -> None:
    assert "internal" not in {code for _, code in await refused(served)}


async def keeps_to_its_vocabulary(served: Served) -> None:
    for name, job in served.store.snapshot().jobs.items():
        assert re.fullmatch(r"[a-z0-9.-]{1,253}", name)
        assert 1 <= job.spec.min_workers <= job.spec.requested_workers <= job.spec.max_workers <= 100_000
        assert math.isfinite(job.spec.max_wait_seconds)
        assert all(
            0 <= each <= COUNT
            for each in (job.observed.revision, job.observed.run, job.observed.restarts, job.observed.applied)
        )
        assert all(re.fullmatch(r"[^\s:]{1,253}", host) for host in job.observed.hosts)
    assert {each["phase"] for each in (await served.status())["jobs"]} <= set(Phase)
    await no_fault_of_the_servers(served)


LAUNCHER = launcher_hello("job", ["host-1"])
REPORT = {"job": "job", "instance": LAUNCHER["instance"], **LAUNCHER["report"], "revision": 2}
PACE = {"revision": 1, "agrees": ["stop"], "collective": True, "world_size": 1, "step_seconds": 0.5}
"""The fields of hellos and reports about agreed steps."""

HELD = {"epoch": 1, "purpose": "stop", "step": 7, "committed": True}
PROCESS = {"process": "p", "host": "host-1", "rank": 0, "pid": 1, "step": None, "sdk": "0", **PACE, "agreement": HELD}
ANSWER = {
    "process": "p",
    "host": "host-1",
    "rank": 0,
    "step": 7,
    "run": 1,
    "generation": 1,
    "kind": "saved",
    **PACE,
    "epoch": 1,
    "purpose": "stop",
    "at_step": 7,
    "answer": "accepted",
    "checkpoint_seconds": 1.5,
    "unread_seconds": 0.1,
}
KNOWN = {"number": 1, "hosts": ["host-1"], "in_process": False}
MEMBER = {
    "processes": 2,
    "address": "host-1:0",
    "round": 1,
    "waits": True,
    "failed": False,
    "unreachable": 0,
    "ready": 0,
    "started": False,
    "ended": False,
    "known": KNOWN,
    "store": {"round": 1, "address": "127.0.0.1", "port": 4000},
}
JOINS = {"member": "m", "host": "host-1", "run": None, "state": MEMBER}


@examples(40)
@given(body=spoken(LAUNCHER), now=spoken(REPORT))
async def test_a_launcher_says_anything(served: Served, body: bytes, now: bytes) -> None:
    """In its hello, and in a report about a job that it has."""
    launcher = Caller(served, served.peers.tokens.launcher("launcher"))
    name = f"job-{next(sessions)}".encode()
    await launcher.is_understood_or_refused("/v1/launchers/stream", body.replace(b'"job"', b'"' + name + b'"'))
    hello = json.dumps(launcher_hello(name.decode(), ["host-1"])).encode()
    await launcher.is_understood_or_refused("/v1/launchers/stream", hello)
    await launcher.is_understood_or_refused("/v1/launchers/report", now.replace(b': "job"', b': "' + name + b'"'))
    await keeps_to_its_vocabulary(served)


@examples(40)
@given(body=spoken(PROCESS), now=spoken(ANSWER))
async def test_a_process_says_anything(served: Served, body: bytes, now: bytes) -> None:
    if not served.store.snapshot().jobs:
        await served.peers.agent("host-1")
        await served.peers.running("job", ["host-1"])
    process = Caller(served, served.peers.tokens.process("job", served.job("job").uid, 1))
    if await process.is_understood_or_refused("/v1/processes/stream", body):
        await keeps_to_its_vocabulary(served)
    if await process.is_understood_or_refused("/v1/processes/report", now):
        await keeps_to_its_vocabulary(served)
    assert served.job("job").decision.phase is Phase.RUNNING


RELAYED = {"relay": "r", "messages": [{"hello": PROCESS}, {"report": ANSWER}, {"gone": "p"}]}


@examples(40)
@given(body=spoken({"relay": "r"}), now=spoken(RELAYED))
async def test_a_relay_says_anything(served: Served, body: bytes, now: bytes) -> None:
    """In its hello, and in a batch on a stream that is open."""
    if not served.store.snapshot().jobs:
        await served.peers.agent("host-1")
        await served.peers.running("job", ["host-1"])
    token = served.peers.tokens.process("job", served.job("job").uid, 1)
    relay = Caller(served, token)
    name = f"relay-{next(sessions)}"
    lines = await served.peers.lines("/v1/relays/stream", token, {"relay": name})
    await relay.is_understood_or_refused("/v1/relays/messages", now.replace(b'"r"', b'"' + name.encode() + b'"'))
    lines.close()
    await relay.is_understood_or_refused("/v1/relays/stream", body)
    await keeps_to_its_vocabulary(served)


@examples(40)
@given(body=spoken(JOINS), now=spoken({**JOINS, "revision": 1}))
async def test_a_member_of_a_rendezvous_says_anything(served: Served, body: bytes, now: bytes) -> None:
    """In its hello, and in a report on a stream that is open."""
    if not served.store.snapshot().jobs:
        await served.peers.agent("host-1")
        await served.peers.running("job", ["host-1"])
    token = served.peers.tokens.process("job", served.job("job").uid, 1)
    member = Caller(served, token)
    lines = await served.peers.lines("/v1/rendezvous/stream", token, JOINS)
    await member.is_understood_or_refused("/v1/rendezvous/report", now)
    lines.close()
    await member.is_understood_or_refused("/v1/rendezvous/stream", body)
    await keeps_to_its_vocabulary(served)


EDGES: list[dict[str, Any]] = [
    *({"step_seconds": each} for each in (*SMALL_AND_LARGE, 0, -1, 10 * 365 * 86400, 10**400)),
    *({"checkpoint_seconds": each} for each in (*SMALL_AND_LARGE, 0, 10 * 365 * 86400)),
    *({"unread_seconds": each} for each in (5e-324, 0, 10 * 365 * 86400)),
    *({"world_size": each} for each in (0, 1, 2, 65536, 65537, 10**9)),
    *({"step": each} for each in (0, -1, 2**53, 2**53 + 1, 10**400)),
    *({"epoch": each} for each in (0, 2**31, 2**31 + 1)),
    *({"agrees": each} for each in ([], ["checkpoint"], ["stop"] * 9, ["join", "shrink", "stop"])),
    *({"rank": each} for each in (None, 1, 2**53)),
    {"collective": True, "step_seconds": 5e-324},
]


async def test_a_stop_is_decided_whatever_the_ranks_say_about_themselves(served: Served) -> None:
    """Each edge is said by a rank of a job of its own, in its hello and in its answers. A job beside them is served."""
    beside = await Bystander.of(served)
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for number, says in enumerate(EDGES):
            group.create_task(_is_stopped(served, f"edge-{number}", says))
    await beside.noticed_nothing()
    await no_fault_of_the_servers(served)


async def _is_stopped(served: Served, job: str, says: dict[str, Any]) -> None:
    """The host of a job with one rank gets a notice; the rank declines what it is asked, and says this."""
    agent = await served.peers.agent(job)
    _, order = await served.peers.running(job, [job])
    hello = {**PROCESS, "agreement": None, "host": job, "run": None, **says}
    if (await served.peers.refused_or_open("/v1/processes/stream", order["token"], hello)).code is not None:
        hello = {**PROCESS, "agreement": None, "host": job, "run": None}
    lines = await served.peers.lines("/v1/processes/stream", order["token"], hello)
    await agent.notices(job, left=2.0)
    answering = asyncio.create_task(_declines(served, order["token"], lines, {"host": job, **says}))
    try:
        await until(lambda: served.job(job).decision.stop is not None, lambda: f"{job} is stopped, which said {says}")
    finally:
        answering.cancel()


async def _declines(served: Served, token: str, lines: Lines, says: dict[str, Any]) -> None:
    while line := await lines.next():
        if line.get("agreement"):
            asked = {"epoch": line["agreement"]["epoch"], "generation": line["generation"], "run": line["run"]}
            declined = {**ANSWER, "kind": "agreement", "answer": "declined", **asked}
            for answer in ({**declined, **says}, {**declined, "host": says["host"]}):
                await served.peers.post("/v1/processes/report", token, answer)


queries = st.dictionaries(texts, texts, max_size=3).map(lambda pairs: urlencode(pairs, errors="surrogatepass"))
targets = st.one_of(
    queries.map(lambda query: f"/v1/status?{query}".encode()),
    st.binary(max_size=20).map(lambda raw: b"/v1/status?" + raw),
    st.binary(max_size=20).map(lambda raw: b"/" + raw),
    st.sampled_from([b"*", b"//", b"http://[::1", b"/v1/%00", b"/v1/status#", b"/v1/../v1/status", b"/" + b"a" * 9000]),
)
methods = st.sampled_from([b"GET", b"GET", b"POST", b"HEAD", b"OPTIONS", b"CONNECT", b"PUT", b"\x00", b"get"])
fields = st.lists(st.binary(max_size=30), max_size=3).map(b"\r\n".join)


@examples(60)
@given(methods, targets, fields)
async def test_a_viewer_asks_for_anything(served: Served, method: bytes, target: bytes, more: bytes) -> None:
    """Whatever path, query, method and header: an answer that is no fault of the server's."""
    token = served.peers.tokens.viewer().encode()
    at = urlsplit(served.peers.http)
    reader, writer = await asyncio.open_connection(at.hostname, at.port)
    writer.write(method + b" " + target + b" HTTP/1.1\r\nHost: h\r\nConnection: close\r\n")
    writer.write(b"Authorization: Bearer " + token + b"\r\n" + more + b"\r\n\r\n")
    writer.write_eof()
    async with asyncio.timeout(PATIENCE):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    if answer:
        assert 200 <= int(answer.split()[1]) < 500, answer
    await no_fault_of_the_servers(served)
