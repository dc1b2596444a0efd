"""Processes with the first SDK are told to stop in their own way."""

import asyncio

from supervisor.jobs.pods import request_stop
from tests.supervisor.jobs.first_sdk import serving


async def test_the_bare_answer_of_the_first_sdk_is_an_answer() -> None:
    """It has no status line, which no HTTP client would take."""
    async with serving("127.0.0.1", b"ok") as (port, heard):
        assert await request_stop(["127.0.0.1"], port) == 1
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
        assert await request_stop(addresses, port) == 1
        assert loop.time() - begun < 10
        assert len(silent) == 1
