"""The stream of lines itself: what a peer that does not read costs."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from aiohttp import web

from supervisor.decide.directives import order_for
from supervisor.fanout.launchers import Launchers
from supervisor.fanout.lines import LineResponse, line
from supervisor.refusals import Code, Refusals, Wire
from tests.supervisor.decide.decide_builders import waiting_job
from tests.testkit.waiting import until

_LINE = line({"type": "padding", "text": "x" * 64 * 1024})
_MAX_LINES = 1000  # 64 MiB: more than the kernel buffers, whatever its settings.


class Streams:
    """A server whose every answer is a stream, and the streams that are open."""

    def __init__(self) -> None:
        self.open: list[LineResponse] = []
        self.refusals = Refusals()
        self.address = ("", 0)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        lines = LineResponse(request, self.refusals)
        await lines.prepare()
        self.open.append(lines)
        try:
            return await lines.serve()
        finally:
            self.open.remove(lines)

    async def connect(self, *headers: str) -> socket.socket:
        """A peer that has asked for a stream and reads nothing."""
        peer = socket.create_connection(self.address)
        head = "\r\n".join(["POST / HTTP/1.1", "Host: here", "Content-Length: 0", *headers])
        peer.sendall(f"{head}\r\n\r\n".encode())
        count = len(self.open) + 1
        await until(lambda: len(self.open) == count)
        return peer


@asynccontextmanager
async def streams() -> AsyncIterator[Streams]:
    serving = Streams()
    app = web.Application()
    app.router.add_post("/", serving.handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    serving.address = runner.addresses[0]
    try:
        yield serving
    finally:
        await runner.cleanup()


async def test_a_peer_that_does_not_read_is_dropped() -> None:
    """Its buffer would grow for ever."""
    async with streams() as serving:
        with await serving.connect():
            (stuck,) = serving.open
            for _ in range(_MAX_LINES):
                stuck.push(_LINE)
                await asyncio.sleep(0)
                if not serving.open:
                    break
            assert not serving.open
            assert serving.refusals.counts == {(Wire.HTTP, Code.SLOW_READER): 1}


async def test_a_peer_that_reads_is_not_dropped_by_one_that_does_not() -> None:
    async with streams() as serving:
        with await serving.connect(), await serving.connect() as peer:
            stuck, read = serving.open
            reader, writer = await asyncio.open_connection(sock=peer, limit=2**20)
            for _ in range(_MAX_LINES):
                stuck.push(_LINE)
                read.push(_LINE)
                await reader.readuntil(_LINE)
                if stuck not in serving.open:
                    break
            assert serving.open == [read]
            writer.close()


async def heartbeats(*headers: str, turns: int = 12, other_lines: bool = False) -> int:
    """How many a peer with these headers gets in so many turns of five seconds."""
    async with streams() as serving:
        with await serving.connect(*headers) as peer:
            (stream,) = serving.open
            for _ in range(turns):
                stream.heartbeat(5.0)
                if other_lines:
                    stream.push(line({"type": "other"}))
            stream.finish("enough")
            reader, writer = await asyncio.open_connection(sock=peer, limit=2**20)
            data = await reader.readuntil(b"0\r\n\r\n")
            writer.close()
    return data.count(b"heartbeat")


async def test_a_peer_gets_heartbeats_as_far_apart_as_it_asks_for() -> None:
    """No farther, and one every turn if it asks for nothing."""
    assert await heartbeats() == 12
    assert await heartbeats("Heartbeat-Seconds: 20") == 3
    assert await heartbeats("Heartbeat-Seconds: 19.9") == 4
    assert await heartbeats("Heartbeat-Seconds: 600") == 0


async def test_another_line_takes_the_place_of_a_heartbeat() -> None:
    assert await heartbeats("Heartbeat-Seconds: 20", other_lines=True) == 0


@pytest.mark.parametrize("wanted", ["", "soon", "nan", "inf", "-1", "601", "1e9"])
async def test_a_peer_that_asks_for_an_impossible_pause_gets_one_every_turn(wanted: str) -> None:
    assert await heartbeats(f"Heartbeat-Seconds: {wanted}") == 12


async def test_nothing_is_sent_after_a_goodbye() -> None:
    async with streams() as serving:
        with await serving.connect() as peer:
            (stream,) = serving.open
            stream.push(line({"number": 1}))
            stream.finish("enough")
            stream.finish("once more")
            stream.push(line({"number": 2}))
            reader, writer = await asyncio.open_connection(sock=peer, limit=2**20)
            data = await reader.readuntil(b"0\r\n\r\n")
            writer.close()
    assert data.index(b'{"number":1}') < data.index(b"enough")
    assert b"once more" not in data
    assert b'{"number":2}' not in data


async def test_an_order_for_an_earlier_job_of_the_name_reaches_nobody() -> None:
    launchers = Launchers(lambda *_: "token", lambda: 0.0)
    late = replace(waiting_job(), uid="the one before")
    async with streams() as serving:
        with await serving.connect() as peer:
            (stream,) = serving.open
            launchers.attach(waiting_job(), order_for(waiting_job()), stream)
            launchers.publish(late, replace(order_for(late), generation=99))
            launchers.finish("enough")
            reader, writer = await asyncio.open_connection(sock=peer, limit=2**20)
            data = await reader.readuntil(b"0\r\n\r\n")
            writer.close()
    assert data.count(b'"type":"order"') == 1
    assert b'"generation":99' not in data
