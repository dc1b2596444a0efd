"""Limits of one connection to an HTTP server."""

import asyncio
import os
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from aiohttp import web

from servicekit.address import Address
from servicekit.clock import Clock
from servicekit.http_server import Drop, GuardedConnection, GuardedSite, mark_streaming, timed
from servicekit.tls import Files, ServerCertificate
from simulator.certificates import SimulatedAuthority
from tests.testkit.loops import UvloopPolicy
from tests.testkit.waiting import until

PATIENCE = 1.0
SLOW = 30.0
"""Seconds after which something that should have ended counts as not having ended."""
GET = b"GET /quick HTTP/1.1\r\nHost: h\r\n\r\n"
STREAM = b"GET /stream HTTP/1.1\r\nHost: h\r\n\r\n"


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    return UvloopPolicy()


@dataclass(frozen=True, slots=True)
class Guarded:
    address: Address
    dropped: Counter[Drop]
    client: ssl.SSLContext | None

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        name = None if self.client is None else "localhost"
        host, port = self.address.host, self.address.port
        reader, writer = await asyncio.open_connection(host, port, ssl=self.client, server_hostname=name)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


async def quick(request: web.Request) -> web.Response:
    return web.Response(text=str(len(await request.read())))


async def stream(request: web.Request) -> web.StreamResponse:
    """Sends a dot now and then for three patiences, and then an end."""
    mark_streaming(request)
    answer = web.StreamResponse()
    answer.enable_chunked_encoding()
    await answer.prepare(request)
    for _ in range(30):
        await answer.write(b".")
        await asyncio.sleep(PATIENCE / 10)
    await answer.write(b"end")
    return answer


async def stuck(_request: web.Request) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError


async def huge(_request: web.Request) -> web.Response:
    return web.Response(body=bytes(64 * 1024 * 1024))


@pytest_asyncio.fixture(params=["plain", "tls"])
async def guarded(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Guarded]:
    context, client = None, None
    if request.param == "tls":
        authority = SimulatedAuthority(tmp_path / "tls")
        context = ServerCertificate(Files(authority.cert_file, authority.key_file), 5.0, Clock()).context
        client = ssl.create_default_context(cadata=authority.ca_pem.decode())
    app = web.Application(middlewares=[timed], client_max_size=2**20)
    app.router.add_route("*", "/quick", quick)
    app.router.add_get("/stream", stream)
    app.router.add_get("/stuck", stuck)
    app.router.add_get("/huge", huge)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    dropped: Counter[Drop] = Counter()
    site = GuardedSite(
        runner, Address("127.0.0.1", 0), context, timeout_seconds=PATIENCE, on_drop=lambda why: dropped.update([why])
    )
    await site.start()
    yield Guarded(Address(*runner.addresses[0][:2]), dropped, client)
    await runner.cleanup()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What comes until the server ends the connection, in whatever way."""
    data = b""
    async with asyncio.timeout(SLOW):
        try:
            while chunk := await reader.read(65536):
                data += chunk
        except ConnectionError:
            pass
    return data


async def drip(writer: asyncio.StreamWriter, what: bytes) -> None:
    for byte in what:
        writer.write(bytes([byte]))
        await asyncio.sleep(PATIENCE / 20)


async def test_a_silent_connection_is_dropped(guarded: Guarded) -> None:
    begun = time.monotonic()
    async with guarded.connected() as (reader, _):
        assert await ended(reader) == b""
    assert time.monotonic() - begun > PATIENCE * 0.9
    assert guarded.dropped == {Drop.NO_REQUEST: 1}


@pytest.mark.parametrize("before", [b"", GET], ids=["first", "second"])
async def test_a_byte_now_and_then_does_not_extend_the_head(guarded: Guarded, before: bytes) -> None:
    async with guarded.connected() as (reader, writer):
        if before:
            writer.write(before)
            await reader.readuntil(b"\r\n\r\n0")
        dripping = asyncio.create_task(drip(writer, b"GET /quick HTTP/1.1\r\nX: " + b"x" * 1000))
        assert await ended(reader) == b""
        dripping.cancel()
    assert guarded.dropped == {Drop.NO_REQUEST: 1}


async def test_a_byte_now_and_then_does_not_extend_the_body(guarded: Guarded) -> None:
    async with guarded.connected() as (reader, writer):
        writer.write(b"POST /quick HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n")
        dripping = asyncio.create_task(drip(writer, b"x" * 1000))
        assert await ended(reader) == b""
        dripping.cancel()
    assert guarded.dropped == {Drop.TOO_SLOW: 1}


async def test_an_answer_that_is_not_taken_is_dropped(guarded: Guarded) -> None:
    async with guarded.connected() as (reader, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # The stubs know the base class only.
        writer.write(b"GET /huge HTTP/1.1\r\nHost: h\r\n\r\n")
        await until(lambda: guarded.dropped, "the server drops the connection")
        writer.transport.resume_reading()  # type: ignore[attr-defined]  # As above.
        assert len(await ended(reader)) < 64 * 1024 * 1024


async def test_an_answer_that_never_comes_is_bounded(guarded: Guarded) -> None:
    async with guarded.connected() as (reader, writer):
        writer.write(b"GET /stuck HTTP/1.1\r\nHost: h\r\n\r\n")
        assert await ended(reader) == b""
    assert guarded.dropped == {Drop.TOO_SLOW: 1}


async def test_a_stream_outlives_every_deadline(guarded: Guarded) -> None:
    async with guarded.connected() as (reader, writer):
        writer.write(STREAM)
        assert b"end" in await ended(reader)
    assert guarded.dropped == {Drop.IDLE: 1}


@pytest.mark.parametrize("request_head", [STREAM, b"GET /stuck HTTP/1.1\r\nHost: h\r\n\r\n"], ids=["stream", "short"])
async def test_nobody_sends_a_second_request_before_the_first_is_answered(
    guarded: Guarded, request_head: bytes
) -> None:
    """They would pile up for as long as the answer takes, which for a stream is days."""
    async with guarded.connected() as (reader, writer):
        writer.write(request_head)
        if request_head is STREAM:
            await reader.readuntil(b".")
        else:
            await asyncio.sleep(PATIENCE / 4)  # Sent together, they would be one piece of data.
        writer.write(GET)
        await ended(reader)
    assert guarded.dropped == {Drop.TOO_MANY: 1}


async def test_honest_requests_share_a_connection(guarded: Guarded) -> None:
    """One after the other, for longer than one patience; a body may come in pieces."""
    async with guarded.connected() as (reader, writer):
        for _ in range(4):
            writer.write(b"POST /quick HTTP/1.1\r\nHost: h\r\nContent-Length: 6\r\n\r\nabc")
            await asyncio.sleep(PATIENCE / 2)
            writer.write(b"def")
            await reader.readuntil(b"\r\n\r\n6")
    assert guarded.dropped == {}


async def test_a_further_request_has_as_much_time_as_the_first(guarded: Guarded) -> None:
    """However long the connection was idle before: its peer does not know how long it may be."""
    async with guarded.connected() as (reader, writer):
        writer.write(GET)
        await reader.readuntil(b"\r\n\r\n0")
        await asyncio.sleep(PATIENCE * 0.7)
        writer.write(GET[:20])
        await asyncio.sleep(PATIENCE * 0.6)
        writer.write(GET[20:])
        await reader.readuntil(b"\r\n\r\n0")
    assert guarded.dropped == {}


async def test_garbage_is_answered_and_ended(guarded: Guarded) -> None:
    async with guarded.connected() as (reader, writer):
        writer.write(b"\x16\x03\x01garbage\r\n\r\n")
        assert b" 400 " in await ended(reader)
    assert guarded.dropped == {}


async def test_a_handshake_that_never_comes_is_bounded(guarded: Guarded) -> None:
    """Without TLS the head does not come, with it not even the handshake; either way the connection ends."""
    reader, writer = await asyncio.open_connection(guarded.address.host, guarded.address.port)
    dripping = asyncio.create_task(drip(writer, b"\x16\x03\x01\x02\x00\x01" + b"\x00" * 1000))
    await ended(reader)
    dripping.cancel()
    writer.transport.abort()


async def test_a_peer_that_acknowledges_nothing_is_given_up() -> None:
    """After fifteen seconds and not after the system's sixteen minutes: each connection is told so."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[int] = loop.create_future()

    class Inner(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            option = socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT
            made.set_result(transport.get_extra_info("socket").getsockopt(*option))

    server = await loop.create_server(lambda: GuardedConnection(Inner(), PATIENCE, lambda _: None), "127.0.0.1", 0)
    async with server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await made == 15_000
        writer.transport.abort()


def test_the_descriptor_limit_is_raised_as_far_as_it_goes() -> None:
    """A child that starts with few has as many as it may have."""
    program = (
        "import resource; from servicekit.process import raise_descriptor_limit;"
        "print(raise_descriptor_limit(), *resource.getrlimit(7))"
    )
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert resource.RLIMIT_NOFILE == 7
    few = f"ulimit -S -n 64; exec {sys.executable} -c '{program}'"
    said = subprocess.run(["/bin/sh", "-c", few], env=os.environ, capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(most)] * 3
