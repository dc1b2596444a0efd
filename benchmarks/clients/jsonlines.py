"""The protocol of the harness and its clients: one tagged JSON object per line, over stdin and stdout."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import uvloop

_MAX_LINE_BYTES = 256 * 1024 * 1024

C = TypeVar("C")


def send(answer: msgspec.Struct) -> None:
    """Send a message to the harness."""
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


def serve(commands: msgspec.json.Decoder[C], handle: Callable[[C], Awaitable[msgspec.Struct]]) -> None:
    """Answer commands until the harness closes stdin."""
    uvloop.run(_serve(commands, handle))


async def _serve(commands: msgspec.json.Decoder[C], handle: Callable[[C], Awaitable[msgspec.Struct]]) -> None:
    reader = asyncio.StreamReader(limit=_MAX_LINE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        send(await handle(commands.decode(line)))
