"""A training process with the first SDK, as far as its port goes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def serving(address: str, answer: bytes | None, port: int = 0) -> AsyncIterator[tuple[int, list[bytes]]]:
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
