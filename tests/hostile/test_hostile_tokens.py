"""Tokens on every endpoint of both wires: each that is not the right one is refused, and counted."""

import asyncio
import base64
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import jwt
import pytest

from servicekit.address import parse
from supervisor.identity.tokens import SECRET_FILE
from tests.hostile.hostile_world import JOB, NODES, Bystander, agent_refused, counted, refused, said
from tests.testkit.serving import FAST, PeerRefusal, Served, launcher_hello
from tests.testkit.waiting import until

STREAM = "/v1/launchers/stream"
REPORT = "/v1/launchers/report"
PROCESSES = "/v1/processes/stream"
ANSWERS = "/v1/processes/report"
STATUS = "/v1/status"
DRILLS = "/v1/drills"
AUDIENCE = "elastic-job-supervisor"
GET = b"GET /v1/status HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %b\r\n\r\n"

pytestmark = pytest.mark.usefixtures("bystander")


@dataclass(frozen=True, slots=True)
class GuardedEndpoint:
    """One HTTP call, and the claims of a token that is good for it."""

    method: str
    path: str
    claims: dict[str, Any]
    body: dict[str, Any]


LAUNCHER = {"kind": "launcher", "name": "launcher"}
PROCESS = {"kind": "process", "job": JOB, "uid": "?", "run": 1}
OPERATOR = {"kind": "operator", "name": "ann"}
HELLO = launcher_hello("mallory", ["n1"])
WHO = {"process": "p", "host": "n1", "rank": 0}
ENDPOINTS = [
    GuardedEndpoint("POST", STREAM, LAUNCHER, HELLO),
    GuardedEndpoint("POST", REPORT, LAUNCHER, {"job": JOB, "instance": "instance-1", **HELLO["report"]}),
    GuardedEndpoint("POST", PROCESSES, PROCESS, {**WHO, "pid": 1}),
    GuardedEndpoint("POST", ANSWERS, PROCESS, {**WHO, "run": 1, "generation": 1, "kind": "left"}),
    GuardedEndpoint("GET", STATUS, {"kind": "viewer"}, {}),
    GuardedEndpoint("POST", DRILLS, OPERATOR, {"node": NODES[0], "lead_seconds": 60}),
]
AGENT = {"kind": "agent", "node": NODES[0]}
KINDS: list[dict[str, Any]] = [{"kind": "agent", "node": "n1"}, LAUNCHER, PROCESS, {"kind": "viewer"}]


def bad_headers(secret: bytes, claims: dict[str, Any]) -> dict[str, str | None]:
    """Every way of an Authorization header to be worth nothing, from claims that would be good."""
    good = {**claims, "aud": AUDIENCE}
    token = jwt.encode(good, secret, algorithm="HS256")
    head, body, signature = token.split(".")
    return {
        "none": None,
        "empty": "Bearer ",
        "of another scheme": f"Basic {token}",
        "cut": f"Bearer {token[:-3]}",
        "with another's claims": f"Bearer {head}.{_part({**good, 'node': 'n2', 'extra': 1})}.{signature}",
        "of another secret": f"Bearer {jwt.encode(good, b'x' * 64, algorithm='HS256')}",
        "unsigned": f"Bearer {_part({'alg': 'none'})}.{body}.",
        "of no known algorithm": f"Bearer {_part({'alg': ['HS256']})}.{body}.{signature}",
        "of another algorithm": f"Bearer {jwt.encode(good, secret, algorithm='HS512')}",
        "expired": f"Bearer {jwt.encode({**good, 'exp': int(time.time()) - 5}, secret, algorithm='HS256')}",
        "for somebody else": f"Bearer {jwt.encode({**good, 'aud': 'somebody'}, secret, algorithm='HS256')}",
        "for nobody": f"Bearer {jwt.encode(claims, secret, algorithm='HS256')}",
        "of no kind": f"Bearer {jwt.encode({**good, 'kind': 'root'}, secret, algorithm='HS256')}",
        "of brackets": f"Bearer {_encoded(b'[' * 4000)}.{body}.{signature}",
        "of claims of brackets": f"Bearer {_nested(secret)}",
        "of no letters": "Bearer !.?.!",
    }


def _part(value: Any) -> str:
    return _encoded(json.dumps(value).encode())


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _nested(secret: bytes) -> str:
    return jwt.PyJWS().encode(b"[" * 2000, secret, algorithm="HS256")


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: each.path)
async def test_a_bad_token_is_refused_over_http(served: Served, tmp_path: Path, endpoint: GuardedEndpoint) -> None:
    before = await refused(served)
    headers = bad_headers((tmp_path / SECRET_FILE).read_bytes(), endpoint.claims)
    found = {name: await _called(served, endpoint, header) for name, header in headers.items()}
    assert found == dict.fromkeys(headers, PeerRefusal(401, "bad_token"))
    await counted(served, before, http_bad_token=len(headers))


async def test_a_bad_token_is_refused_to_agents(served: Served, tmp_path: Path) -> None:
    before = await refused(served)
    headers = bad_headers((tmp_path / SECRET_FILE).read_bytes(), AGENT)
    found = {name: await _agent_called(served, header) for name, header in headers.items()}
    assert found == dict.fromkeys(headers, (grpc.StatusCode.UNAUTHENTICATED, "bad_token"))
    await counted(served, before, grpc_bad_token=len(headers))


async def _called(served: Served, endpoint: GuardedEndpoint, header: str | None) -> PeerRefusal:
    headers = {} if header is None else {"Authorization": header}
    url = served.peers.http + endpoint.path
    async with served.peers.session.request(
        endpoint.method, url, headers=headers, data=json.dumps(endpoint.body)
    ) as response:
        return PeerRefusal(response.status, None if response.status == 200 else (await response.json())["error"])


async def _agent_called(served: Served, header: str | None) -> tuple[grpc.StatusCode, str]:
    # The peer sends "Bearer …" and nothing else, so that other schemes go as a token with a blank in it.
    if header is None or not header.startswith("Bearer"):
        return await agent_refused(served.peers, None, said(NODES[0]))
    return await agent_refused(served.peers, header.removeprefix("Bearer "), said(NODES[0]))


async def test_a_header_that_is_no_text_is_refused(served: Served) -> None:
    """Bytes above 127, which aiohttp hands on as surrogates."""
    before = await refused(served)
    reply = await _raw(served, GET % b"\xff\xfe\xc3")
    assert reply.split()[1] == b"401"
    await counted(served, before, http_bad_token=1)


async def test_a_header_beyond_all_bounds_is_refused(served: Served) -> None:
    """Before anybody reads it: 8 KiB over HTTP; over gRPC by gRPC itself, which tells us nothing."""
    before = await refused(served)
    reply = await _raw(
        served, b"GET /v1/status HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer " + b"x" * 9000 + b"\r\n\r\n"
    )
    assert reply.split()[1] == b"400"
    await counted(served, before, http_bad_request=1)
    status, _ = await agent_refused(served.peers, "x" * 20000)
    assert status is grpc.StatusCode.RESOURCE_EXHAUSTED


async def _raw(served: Served, data: bytes) -> bytes:
    address = parse(served.peers.http.removeprefix("http://"))
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        writer.write(data)
        async with asyncio.timeout(30):
            return await reader.readline()
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: each.path)
async def test_a_token_of_another_kind_is_foreign(served: Served, tmp_path: Path, endpoint: GuardedEndpoint) -> None:
    before = await refused(served)
    secret = (tmp_path / SECRET_FILE).read_bytes()
    others = [kind for kind in KINDS if kind["kind"] != endpoint.claims["kind"]]
    for kind in others:
        token = jwt.encode({**kind, "aud": AUDIENCE}, secret, algorithm="HS256")
        assert await _called(served, endpoint, f"Bearer {token}") == PeerRefusal(403, "foreign_token")
    await counted(served, before, http_foreign_token=len(others))


async def test_an_agents_stream_is_for_agents_and_their_own_node(served: Served) -> None:
    """Neither another kind of token, nor node A's for node B: in the hello, and later."""
    tokens, before = served.peers.tokens, await refused(served)
    foreign = (grpc.StatusCode.PERMISSION_DENIED, "foreign_token")
    others = [tokens.launcher("me"), tokens.process(JOB, "uid", 1), tokens.viewer()]
    for token in others:
        assert await agent_refused(served.peers, token, said("n1")) == foreign
    another = tokens.agent("mallory")
    assert await agent_refused(served.peers, another, said(NODES[0], session=2**40)) == foreign
    await counted(served, before, grpc_foreign_token=len(others) + 1)


async def test_a_replayed_process_token_is_refused(served: Served) -> None:
    """Of an earlier run, of an earlier job of the same name, and of a job that never was."""
    await served.peers.agent("n1")
    launcher, order = await served.peers.running("other", ["n1"])
    earlier = served.peers.tokens.process("other", "uid-of-an-earlier-job", 1)
    unknown = served.peers.tokens.process("nobody", "uid", 1)
    await launcher.reports(run=2)
    before = await refused(served)
    for path, body in ((PROCESSES, {**WHO, "pid": 1}), (ANSWERS, {**WHO, "run": 1, "generation": 1, "kind": "left"})):
        assert await served.peers.post(path, order["token"], body) == PeerRefusal(409, "run_is_over")
        assert await served.peers.post(path, earlier, body) == PeerRefusal(404, "unknown_job")
        assert await served.peers.post(path, unknown, body) == PeerRefusal(404, "unknown_job")
    await counted(served, before, http_run_is_over=2, http_unknown_job=4)


async def test_a_process_token_speaks_for_its_own_run(served: Served, bystander: Bystander) -> None:
    before = await refused(served)
    body = {**WHO, "run": 2, "generation": 1, "kind": "left"}
    assert await served.peers.post(ANSWERS, bystander.process.token, body) == PeerRefusal(403, "foreign_token")
    await counted(served, before, http_foreign_token=1)


async def test_a_launcher_cannot_speak_for_another_ones_job(served: Served, bystander: Bystander) -> None:
    before = await refused(served)
    token = served.peers.tokens.launcher("mallory")
    for instance in ("instance-1", "instance-2"):
        report = {**bystander.launcher.report, "instance": instance, "revision": 99, "result": "failed"}
        assert await served.peers.post(REPORT, token, report) == PeerRefusal(403, "foreign_token")
        body = launcher_hello(JOB, [], instance=instance)
        assert await served.peers.post(STREAM, token, body) == PeerRefusal(409, "name_is_live")
    await counted(served, before, http_foreign_token=2, http_name_is_live=2)


async def test_a_job_is_not_taken_while_its_launcher_is_away(served: Served) -> None:
    """However long: the name is free for its own launcher alone, until the job is over."""
    launcher = await served.peers.launcher("job", ["n1"])
    uid = served.job("job").uid
    launcher.lines.close()
    begun, token = time.monotonic(), served.peers.tokens.launcher("mallory")
    theirs = launcher_hello("job", ["n1"], instance="instance-2")
    while time.monotonic() - begun < 3 * FAST["launcher_live_seconds"]:
        assert await served.peers.post(STREAM, token, theirs) == PeerRefusal(409, "name_is_live")
    own = launcher_hello("job", ["n1"], instance="instance-3")
    assert await served.peers.refused_or_open(STREAM, launcher.token, own) == PeerRefusal(200, None)
    assert served.job("job").uid != uid


async def test_a_token_may_expire(served: Served) -> None:
    """It is good until then; a stream that was opened in time goes on."""
    tokens, soon = served.peers.tokens, time.time() + 2
    expiring = tokens.agent("n1", soon)
    agent = served.peers.stranger(expiring)
    await agent.call.write(said("n1"))
    await agent.read("welcome")
    alive = asyncio.create_task(agent.live())
    await until(lambda: time.time() >= soon + 1)
    assert await agent_refused(served.peers, expiring, said("n1")) == (grpc.StatusCode.UNAUTHENTICATED, "bad_token")
    await agent.notices("n1")
    alive.cancel()
