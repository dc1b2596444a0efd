"""Browsers with the open status page, which read what is pushed and discard it."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from benchmarks.harness.server import BenchmarkServer

_FIRST_SECONDS = 30.0
_MAX_AT_ONCE = 2**20


@dataclass(slots=True)
class LoadViewers:
    """The number of bytes that all of them have read."""

    read_bytes: int = 0


@asynccontextmanager
async def viewers(server: BenchmarkServer, count: int) -> AsyncIterator[LoadViewers]:
    """Open the page `count` times. Each has received its first page when the block starts."""
    all_of_them, token = LoadViewers(), server.tokens.viewer()
    async with AsyncExitStack() as stack:
        readers = [await _opened(server, token, stack) for _ in range(count)]
        for reader in readers:
            async with asyncio.timeout(_FIRST_SECONDS):
                await reader.readuntil(b'"page"')
        for number, reader in enumerate(readers):
            task = asyncio.create_task(_look(reader, all_of_them), name=f"viewer {number}")
            stack.callback(task.cancel)
        yield all_of_them


async def _opened(server: BenchmarkServer, token: str, stack: AsyncExitStack) -> asyncio.StreamReader:
    address = server.endpoints.http_address
    trusted = None if server.ca is None else ssl.create_default_context(cafile=str(server.ca))
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=trusted, limit=_MAX_AT_ONCE)
    stack.callback(writer.close)
    head = f"GET /status/stream HTTP/1.1\r\nHost: supervisor\r\nAuthorization: Bearer {token}\r\n\r\n"
    writer.write(head.encode())
    return reader


async def _look(reader: asyncio.StreamReader, all_of_them: LoadViewers) -> None:
    while data := await reader.read(_MAX_AT_ONCE):
        all_of_them.read_bytes += len(data)
