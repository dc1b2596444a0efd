"""Nodes without a supervisor: each asks its metadata every 2 s, and at a notice sends SIGTERM to its own process."""

import asyncio
import random
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence

import aiohttp
import msgspec

from benchmarks.clients.baseline import POLL_SECONDS
from benchmarks.clients.jsonlines import serve

_TRAINING = "cat"
"""What receives SIGTERM: it waits for its stdin, so that it ends with this process, too."""
_AT_ONCE = 20
_LAST_SECONDS = 60.0


class Watch(msgspec.Struct, frozen=True, tag=True):
    """Start a process and a loop for each of these URLs, which are answered with 200 while there is a notice."""

    urls: Sequence[str]


class CollectPolls(msgspec.Struct, frozen=True, tag=True):
    """Wait until all processes have ended."""


class Ended(msgspec.Struct, frozen=True, tag=True):
    """When the process of each URL had ended, in their order (CLOCK_MONOTONIC); empty as the answer to `Watch`."""

    at: Sequence[float] = ()


Command = Watch | CollectPolls


class _Pollers:
    def __init__(self) -> None:
        self._watching: asyncio.Task[list[float]] | None = None

    async def handle(self, command: Command) -> Ended:
        match command:
            case Watch(urls=urls):
                self._watching = asyncio.create_task(_watch(urls, await _processes(len(urls))))
            case CollectPolls() if self._watching is not None:
                async with asyncio.timeout(_LAST_SECONDS):
                    return Ended(await self._watching)
        return Ended()


async def _processes(count: int) -> Sequence[Process]:
    turns = asyncio.Semaphore(_AT_ONCE)

    async def start() -> Process:
        async with turns:
            return await asyncio.create_subprocess_exec(_TRAINING, stdin=PIPE, stdout=DEVNULL)

    return await asyncio.gather(*(start() for _ in range(count)))


async def _watch(urls: Sequence[str], processes: Sequence[Process]) -> list[float]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        pairs = zip(urls, processes, strict=True)
        return await asyncio.gather(*(_loop(session, url, process) for url, process in pairs))


async def _loop(session: aiohttp.ClientSession, url: str, process: Process) -> float:
    """Return when the process had ended. The first question is at a random moment of the interval."""
    await asyncio.sleep(random.uniform(0.0, POLL_SECONDS))  # noqa: S311 - no secret
    while not await _is_noticed(session, url):  # noqa: ASYNC110 - this is what is measured
        await asyncio.sleep(POLL_SECONDS)
    process.terminate()
    await process.wait()
    return time.monotonic()


async def _is_noticed(session: aiohttp.ClientSession, url: str) -> bool:
    async with session.get(url) as answer:
        return answer.ok


if __name__ == "__main__":
    serve(msgspec.json.Decoder(Command), _Pollers().handle)
