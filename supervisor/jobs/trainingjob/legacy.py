"""Training processes with the first SDK: they have no stream to us, and serve `GET /stop` themselves."""

import asyncio
from collections.abc import Collection
from contextlib import suppress

PORT = 9009
_SECONDS = 2.0
_AT_ONCE = 50

_REQUEST = b"GET /stop HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


async def stop(addresses: Collection[str], port: int = PORT) -> int:
    """Has the process at each address stop at its next `check_alive()`; returns how many have taken it.

    One that has no such process is no failure: nothing listens there. The answer is `ok` without a status line.
    """
    turns = asyncio.Semaphore(_AT_ONCE)

    async def told(address: str) -> bool:
        async with turns:
            return await _told(address, port)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(told(address)) for address in addresses]
    return sum(task.result() for task in tasks)


async def _told(address: str, port: int) -> bool:
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_connection(address, port)
            try:
                writer.write(_REQUEST)
                return b"ok" in await reader.read(1024)
            finally:
                writer.transport.abort()
    return False
