"""Stops training processes with the first SDK, which have no stream but serve `GET /stop` themselves."""

import asyncio
from collections.abc import Collection
from contextlib import suppress

PORT = 9009
_TIMEOUT_SECONDS = 2.0
_CONCURRENCY = 50

_REQUEST = b"GET /stop HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def request_stop(addresses: Collection[str], port: int = PORT) -> int:
    """Asks the process at each address to stop at its next `check_alive()`; returns how many accepted.

    An address without such a process is not a failure. The answer is `ok` without a status line.
    """
    turns = asyncio.Semaphore(_CONCURRENCY)

    async def request(address: str) -> bool:
        async with turns:
            return await _is_accepted(address, port)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(request(address)) for address in addresses]
    return sum(task.result() for task in tasks)


async def _is_accepted(address: str, port: int) -> bool:
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            reader, writer = await asyncio.open_connection(address, port)
            try:
                writer.write(_REQUEST)
                return b"ok" in await reader.read(1024)
            finally:
                writer.transport.abort()
    return False
