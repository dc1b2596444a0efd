"""Processes with the first SDK are told to stop in their own way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from supervisor.jobs.trainingjob import legacy


@asynccontextmanager
async def serving(address: str, answer: bytes | None, port: int = 0) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A process that takes requests; None: and never answers."""
    heard: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        if answer is None:
            await reader.read()
        else:
            writer.write(answer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, address, port)
    async with server:
        yield int(server.sockets[0].getsockname()[1]), heard


async def test_the_bare_answer_of_the_first_sdk_is_an_answer() -> None:
    """It has no status line, which no HTTP client would take."""
    async with serving("127.0.0.1", b"ok") as (port, heard):
        assert await legacy.stop(["127.0.0.1"], port) == 1
    assert [request.split(b"\r\n")[0] for request in heard] == [b"GET /stop HTTP/1.1"]


async def test_who_does_not_answer_holds_nobody_up() -> None:
    """Nothing listens, somebody is silent, somebody serves something else: all others are told, within a moment."""
    loop = asyncio.get_running_loop()
    async with (
        serving("127.0.0.2", b"ok") as (port, _),
        serving("127.0.0.3", None, port) as (_, silent),
        serving("127.0.0.4", b"HTTP/1.1 404 Not Found\r\n\r\n", port),
    ):
        begun = loop.time()
        addresses = [f"127.0.0.{number}" for number in range(1, 5)]
        assert await legacy.stop(addresses, port) == 1
        assert loop.time() - begun < 10
        assert len(silent) == 1
