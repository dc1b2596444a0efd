"""A peer that is gone is no fault of the supervisor, in whatever moment it went; a fault stays one."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from supervisor.fanout.lines import LineResponse
from supervisor.ingest.errors import MalformedError
from supervisor.ingest.http import body, protocol_log, refusing
from supervisor.refusals import Code, Refusals, Wire
from tests.testkit.waiting import until

HEAD = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 1000\r\n\r\n"
INTERNAL = {(Wire.HTTP, Code.INTERNAL): 1}


class Hello(msgspec.Struct):
    """Stands for what the peer would have said."""


Handle = Callable[[web.Request, Refusals], Awaitable[web.StreamResponse]]


@dataclass
class Server:
    """A server with one handler; `outcomes` is how each request has ended."""

    handle: Handle
    refusals: Refusals = field(default_factory=Refusals)
    outcomes: list[BaseException | None] = field(default_factory=list)
    is_reading: bool = False

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.is_reading = True
        try:
            answer = await self.handle(request, self.refusals)
        except BaseException as error:
            self.outcomes.append(error)
            raise
        self.outcomes.append(None)
        return answer


@asynccontextmanager
async def asked(handle: Handle, *, cancels: bool = True) -> AsyncIterator[tuple[Server, socket.socket]]:
    """A server and a peer that has sent it a head; `cancels` is whether aiohttp cancels handlers."""
    server = Server(handle)
    app = web.Application(middlewares=[refusing(server.refusals)])
    app.router.add_post("/", server.serve)
    logger = protocol_log(server.refusals)
    runner = web.AppRunner(app, access_log=None, logger=logger, handler_cancellation=cancels, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        with socket.create_connection(runner.addresses[0]) as peer:
            peer.sendall(HEAD)
            yield server, peer
    finally:
        await runner.cleanup()


def leave(request: web.Request) -> None:
    """Has the connection close, as when the peer is found to be gone; that it is lost is told later."""
    assert request.transport is not None
    request.transport.abort()


async def gone_before_the_head(request: web.Request, refusals: Refusals) -> web.StreamResponse:
    lines = LineResponse(request, refusals)
    leave(request)
    await lines.prepare()
    raise AssertionError


async def gone_before_the_goodbye(request: web.Request, refusals: Refusals) -> web.StreamResponse:
    lines = LineResponse(request, refusals)
    await lines.prepare()
    lines.finish("enough")
    leave(request)
    return await lines.serve()


async def gone_before_the_answer(request: web.Request, _refusals: Refusals) -> web.StreamResponse:
    leave(request)
    return web.json_response({})


async def reads(request: web.Request, _refusals: Refusals) -> web.StreamResponse:
    await body(request, Hello, 1000)
    raise AssertionError


@pytest.mark.parametrize("handle", [gone_before_the_head, gone_before_the_goodbye, gone_before_the_answer])
async def test_a_peer_that_went_before_it_is_answered(handle: Handle) -> None:
    async with asked(handle) as (server, _):
        await until(lambda: server.outcomes)
    assert server.refusals.counts == {}


@pytest.mark.parametrize("cancels", [True, False])
async def test_a_peer_that_goes_in_the_middle_of_its_body(cancels: bool) -> None:  # noqa: FBT001 - a parameter
    """Whether handlers are cancelled, as those of peers are, or not, as those of the webhook."""
    async with asked(reads, cancels=cancels) as (server, peer):
        await until(lambda: server.is_reading)
        peer.close()
        await until(lambda: server.outcomes)
    assert isinstance(server.outcomes[0], asyncio.CancelledError) == cancels
    assert server.refusals.counts == {}


async def test_what_a_peer_said_before_it_went_is_refused() -> None:
    async def handle(request: web.Request, _refusals: Refusals) -> web.StreamResponse:
        leave(request)
        raise MalformedError("no")

    async with asked(handle) as (server, _):
        await until(lambda: server.outcomes)
    assert server.refusals.counts == {(Wire.HTTP, Code.MALFORMED): 1}


async def test_a_lost_connection_of_our_own_is_a_fault() -> None:
    """To another service, while the peer waits for its answer."""

    async def handle(_request: web.Request, _refusals: Refusals) -> web.StreamResponse:
        raise ConnectionResetError("another service went")

    with capture_logs() as logs:
        async with asked(handle) as (server, _):
            await until(lambda: server.outcomes)
    assert server.refusals.counts == INTERNAL
    assert isinstance(logs[0]["exc_info"], ConnectionResetError)


async def test_a_defect_is_a_fault_although_the_peer_is_gone() -> None:
    async def handle(request: web.Request, _refusals: Refusals) -> web.StreamResponse:
        leave(request)
        raise LookupError("missing")

    async with asked(handle) as (server, _):
        await until(lambda: server.outcomes)
    assert server.refusals.counts == INTERNAL
