"""Refusals are counted and logged, and neither grows without bound."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from servicekit.address import parse
from supervisor.refusals import Code, Refusals, Wire
from tests.hostile.hostile_world import counted, refused
from tests.testkit.serving import PeerRefusal, Served, launcher_hello, serving
from tests.testkit.waiting import PATIENCE

REPORT = "/v1/launchers/report"


def test_a_thousand_refusals_are_one_line_and_a_number() -> None:
    """The first of a kind at once, the others as their number; when they have ended, the next is a first one again."""
    refusals = Refusals()
    with capture_logs() as logs:
        for number in range(1000):
            refusals.add(Wire.HTTP, Code.MALFORMED, f"number {number}")
        refusals.add(Wire.GRPC, Code.MALFORMED, "another kind")
        refusals.summarize()
        refusals.summarize()
        refusals.add(Wire.HTTP, Code.MALFORMED, "again")
    told = [(each["event"], each["wire"], each.get("why", each.get("count"))) for each in logs]
    assert told == [
        ("peer.refused", Wire.HTTP, "number 0"),
        ("peer.refused", Wire.GRPC, "another kind"),
        ("peer.refused_more", Wire.HTTP, 999),
        ("peer.refused", Wire.HTTP, "again"),
    ]
    assert refusals.counts == {(Wire.HTTP, Code.MALFORMED): 1001, (Wire.GRPC, Code.MALFORMED): 1}


def test_what_a_peer_says_commands_no_terminal() -> None:
    with capture_logs() as logs:
        Refusals().add(Wire.HTTP, Code.MALFORMED, "\x1b[2J\r\n" + "x" * 10_000)
    assert logs[0]["why"].startswith("�[2J��x")
    assert len(logs[0]["why"]) == 200


async def test_the_status_shows_what_was_refused(served: Served) -> None:
    assert (await served.status())["refused"] == []
    for _ in range(2):
        assert await served.peers.post(REPORT, "no token", {}) == PeerRefusal(401, "bad_token")
    kind = {"wire": "http", "code": "bad_token", "count": 2}
    assert (await served.status())["refused"] == [kind]


@pytest.mark.parametrize(
    "said",
    [b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\r\nContent-Length: many\r\n\r\n"],
)
async def test_bytes_that_are_not_http_are_counted(served: Served, said: bytes) -> None:
    before = await refused(served)
    async with connection(served) as (reader, writer):
        writer.write(said)
        assert b" 400 " in await reader.read()
    await counted(served, before, http_bad_request=1)


@pytest.mark.parametrize(
    "said",
    [
        b"GET /livez HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"GET /nowhere HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"GARBAGE\r\n\r\n",
    ],
)
async def test_no_answer_names_versions(served: Served, said: bytes) -> None:
    async with connection(served) as (reader, writer):
        writer.write(said)
        answer = await reader.read()
    assert b"\r\nServer: job-supervisor\r\n" in answer
    assert not [name for name in (b"aiohttp", b"Python") if name in answer]


async def test_a_request_beside_a_stream_is_counted(served: Served) -> None:
    before = await refused(served)
    token = served.peers.tokens.launcher("launcher").encode()
    body = json.dumps(launcher_hello("job", ["n1"])).encode()
    head = b"POST /v1/launchers/stream HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n"
    async with connection(served) as (reader, writer):
        writer.write(head % (token, len(body)) + body)
        await reader.readuntil(b"order")
        writer.write(b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            await reader.read()
    await counted(served, before, http_bad_request=1)


@pytest.mark.parametrize(
    ("said", "count"), [(b"", 1), (b"POST /v1/", 1), (b"GET /livez HTTP/1.1\r\nHost: h\r\n\r\n", 0)]
)
async def test_connections_that_come_to_nothing_are_counted(tmp_path: Path, said: bytes, count: int) -> None:
    """Those that said nothing, or half a request; one that has done its work is just closed."""
    async with serving(tmp_path, connection_seconds=1.0) as served:
        before = await refused(served)
        async with connection(served) as (reader, writer):
            writer.write(said)
            with contextlib.suppress(ConnectionError):
                await reader.read()
        await counted(served, before, http_too_slow=count)


@asynccontextmanager
async def connection(served: Served) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """One that nothing has been said on; it may be read for as long as a test may wait."""
    address = parse(served.peers.http.removeprefix("http://"))
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        async with asyncio.timeout(PATIENCE):
            yield reader, writer
    finally:
        writer.transport.abort()
