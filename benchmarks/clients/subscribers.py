"""Subscribers of a broker, each with a connection of its own over TLS, which record how late each message is."""

import asyncio
import ssl
import time
from collections.abc import Sequence

import msgspec

from benchmarks.clients.broker_dialect import DIALECTS, PAYLOAD, BrokerDialect
from benchmarks.clients.jsonlines import serve

_AT_ONCE = 50


class Subscribe(msgspec.Struct, frozen=True, tag=True):
    """Open one connection for each channel, and subscribe to it. `ca` is PEM."""

    broker: str
    port: int
    ca: str
    channels: Sequence[str]


class CutSubscribers(msgspec.Struct, frozen=True, tag=True):
    """After so many seconds, break the first `count` connections, and open them again `away` seconds later."""

    count: int
    after: float
    away: float


class CollectMessages(msgspec.Struct, frozen=True, tag=True):
    """Say what was received since the subscription."""


class Received(msgspec.Struct, frozen=True, tag=True):
    """The delays of all messages of all subscribers, in seconds."""

    delays: Sequence[float] = ()


class BrokerMessage(msgspec.Struct, frozen=True):
    """What is published. `at` is an instant of CLOCK_MONOTONIC; `text` makes it as long as a line of the supervisor."""

    at: float
    text: str


Command = Subscribe | CutSubscribers | CollectMessages
_MESSAGES = msgspec.json.Decoder(BrokerMessage)


async def connect(
    dialect: BrokerDialect, port: int, trusted: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection over TLS."""
    if not dialect.greets:
        return await asyncio.open_connection("localhost", port, ssl=trusted)
    reader, writer = await asyncio.open_connection("localhost", port)
    await reader.readline()
    await writer.start_tls(trusted, server_hostname="localhost")
    return reader, writer


class _Subscriber:
    def __init__(self, asked: Subscribe, channel: str, trusted: ssl.SSLContext) -> None:
        self._dialect = DIALECTS[asked.broker]
        self._port = asked.port
        self._channel = channel
        self._trusted = trusted
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self.delays: list[float] = []

    async def open(self) -> None:
        """Return once the broker has the subscription."""
        reader, self._writer = await connect(self._dialect, self._port, self._trusted)
        self._writer.write(self._dialect.subscribe(self._channel))
        while not (line := await reader.readline()).startswith(self._dialect.subscribed):
            if not line:
                raise ConnectionResetError("the broker refuses the subscription")
        self._task = asyncio.create_task(self._read(reader, self._writer))

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if line.startswith(PAYLOAD):
                self.delays.append(time.monotonic() - _MESSAGES.decode(line).at)
            elif self._dialect.ping and line.startswith(self._dialect.ping):
                writer.write(self._dialect.pong)

    async def close(self) -> None:
        if self._task is not None and self._writer is not None:
            self._task.cancel()
            self._writer.transport.abort()
            await asyncio.gather(self._task, return_exceptions=True)


class _Subscribers:
    def __init__(self) -> None:
        self._all: list[_Subscriber] = []

    async def handle(self, command: Command) -> Received:
        match command:
            case Subscribe():
                trusted = ssl.create_default_context(cadata=command.ca)
                self._all = [_Subscriber(command, channel, trusted) for channel in command.channels]
                await self._open(self._all)
            case CutSubscribers():
                await asyncio.sleep(command.after)
                await self._cut(self._all[: command.count], command.away)
            case CollectMessages():
                return Received([delay for each in self._all for delay in each.delays])
        return Received()

    async def _open(self, subscribers: Sequence[_Subscriber]) -> None:
        turns = asyncio.Semaphore(_AT_ONCE)

        async def one(each: _Subscriber) -> None:
            async with turns:
                await each.open()

        async with asyncio.TaskGroup() as group:
            for each in subscribers:
                group.create_task(one(each))

    async def _cut(self, subscribers: Sequence[_Subscriber], away: float) -> None:
        await asyncio.gather(*(each.close() for each in subscribers))
        await asyncio.sleep(away)
        await self._open(subscribers)


if __name__ == "__main__":
    serve(msgspec.json.Decoder(Command), _Subscribers().handle)
