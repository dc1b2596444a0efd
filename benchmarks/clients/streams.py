"""Simulates the streams of many training processes in one process.

Received bytes are time-stamped and kept, and parsed only when the harness asks, so that the client measures the server
and not itself.
"""

import asyncio
import itertools
import json
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
from kubeai.elastic.wire import ChunkDecoder, LineSplitter, WireBackoff

from benchmarks.clients.jsonlines import serve

_STREAM = "/v1/processes/stream"
_STREAM_OF_RELAYS = "/v1/relays/stream"
_MESSAGES_OF_RELAYS = "/v1/relays/messages"
_DIRECTIVE = b'"directive"'
_HEAD_END = b"\r\n\r\n"


class StreamGroup(msgspec.Struct, frozen=True):
    """The processes of one job: the host of each, in the order of their ranks. Each `shared` of them share a stream."""

    job: str
    token: str
    hosts: list[str]
    shared: int = 1


class StreamsSetup(msgspec.Struct, frozen=True, tag=True):
    """The address to call, the processes, and the number of parallel calls at the start."""

    host: str
    port: int
    ca: str | None
    groups: list[StreamGroup]
    at_once: int = 50


class DrainStreams(msgspec.Struct, frozen=True, tag=True):
    """Return everything received since the last call."""


class StreamsReady(msgspec.Struct, frozen=True, tag=True):
    """Wait until every stream has received a line, at most `seconds`."""

    seconds: float


class DirectiveReceived(msgspec.Struct, frozen=True, array_like=True):
    """A directive line received by stream `stream` at `at` (CLOCK_MONOTONIC)."""

    at: float
    stream: int
    directive: str
    generation: int
    notice: str


class Arrivals(msgspec.Struct, frozen=True):
    """`opened` has the times of the first line of each connection. `waiting` counts streams without one now."""

    received: list[DirectiveReceived] = []
    opened: list[float] = []
    waiting: int = 0


class _LoadStream(asyncio.Protocol):
    def __init__(self, owner: "_StreamedProcess") -> None:
        self._owner = owner
        self._received: list[tuple[float, bytes]] = []
        self._is_past_head = False
        self._chunks = ChunkDecoder()
        self._lines = LineSplitter()
        self.ready = False
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._owner.request)  # uvloop's class is not a subclass of it.

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if not self._received and not self._is_past_head:
            self._owner.answered()
        self._received.append((now, data))
        if not self.ready and _DIRECTIVE in data:
            self.ready = True
            self._owner.opened(now)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's interface
        self.is_lost, self.ready = True, False
        self._owner.lost()

    def messages(self) -> Iterator[tuple[float, dict[str, Any]]]:
        """Yield the lines received since the last call, with their times."""
        if not self._is_past_head:
            self._received = _without_head(self._received)
            self._is_past_head = bool(self._received)
        received, self._received = self._received, []
        for at, data in received:
            for line in self._lines.feed(self._chunks.feed(data)):
                yield at, json.loads(line)


class _StreamedProcess:
    """Plays a training process, and keeps its stream open as the SDK does."""

    def __init__(self, index: int, clients: "_Clients", request: bytes) -> None:
        self.request = request
        self._index = index
        self._clients = clients
        self._backoff = WireBackoff()
        self._streams: list[_LoadStream] = []

    @property
    def ready(self) -> bool:
        return any(stream.ready for stream in self._streams)

    async def connect(self) -> None:
        """Connect until it succeeds."""
        while True:
            stream = _LoadStream(self)
            self._streams.append(stream)
            try:
                await self._clients.connect(stream)
            except OSError:
                self._streams.remove(stream)
                await asyncio.sleep(self._backoff.next())
            else:
                return

    def answered(self) -> None:
        """The supervisor has begun to answer."""

    def opened(self, at: float) -> None:
        self._backoff.reset()
        self._clients.opened.append(at)

    def lost(self) -> None:
        """Reconnect after the SDK's pause."""
        self._clients.later(self._backoff.next(), self.connect)

    def drain(self) -> list[DirectiveReceived]:
        messages = [each for stream in self._streams for each in stream.messages()]
        self._streams = [stream for stream in self._streams if not stream.is_lost]
        return [each for at, message in messages for each in self.directives(at, message)]

    def directives(self, at: float, message: dict[str, Any]) -> Iterator[DirectiveReceived]:
        """Yield what a line tells this process."""
        if message.get("type") == "directive":
            yield _parse_directive(at, self._index, message)


class _Relay(_StreamedProcess):
    """Plays the relay of a host: its processes join its stream, and each line names those that it is for."""

    def __init__(self, first: int, clients: "_Clients", group: StreamGroup, ranks: Sequence[int]) -> None:
        super().__init__(first, clients, b"")
        self._names = (f"{group.job}-{ranks[0]}-{number}" for number in itertools.count())
        self._token = group.token
        self._hellos = [{"hello": _hello(group, rank)} for rank in ranks]
        self._join_request = b""
        self._numbers = {_name(group, rank): first + turn for turn, rank in enumerate(ranks)}

    async def connect(self) -> None:
        """Connect under a new name, as the supervisor may not have noticed the end of the last stream."""
        name = next(self._names)
        self.request = _request(_STREAM_OF_RELAYS, self._token, {"relay": name})
        self._join_request = _request(_MESSAGES_OF_RELAYS, self._token, {"relay": name, "messages": self._hellos})
        await super().connect()

    def answered(self) -> None:
        self._clients.later(0.0, self._join)

    async def _join(self) -> None:
        """Announce the processes, until the supervisor has accepted that or the stream is lost."""
        stream, request, backoff = self._streams[-1], self._join_request, WireBackoff()
        is_joined = False
        while not stream.is_lost and not is_joined:
            is_joined = await self._clients.post(request)
            await asyncio.sleep(0.0 if is_joined else backoff.next())

    def directives(self, at: float, message: dict[str, Any]) -> Iterator[DirectiveReceived]:
        if message.get("type") == "relayed" and message["line"]["type"] == "directive":
            for name in message["processes"]:
                yield _parse_directive(at, self._numbers[name], message["line"])


class _Clients:
    def __init__(self) -> None:
        self.opened: list[float] = []
        self._setup: StreamsSetup | None = None
        self._tls: ssl.SSLContext | None = None
        self._processes: list[_StreamedProcess] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def handle(self, command: StreamsSetup | DrainStreams | StreamsReady) -> Arrivals:
        match command:
            case StreamsSetup():
                await self._start(command)
            case StreamsReady():
                await self._until_ready(command.seconds)
            case DrainStreams():
                pass
        return self._arrivals()

    async def connect(self, stream: _LoadStream) -> None:
        if self._setup is None:
            raise AssertionError("set up first")
        host = self._setup.host if self._tls is not None else None
        loop = asyncio.get_running_loop()
        await loop.create_connection(
            lambda: stream, self._setup.host, self._setup.port, ssl=self._tls, server_hostname=host
        )

    async def post(self, request: bytes) -> bool:
        """Make one call on a connection of its own, as a relay's first one is. Return whether it was accepted."""
        if self._setup is None:
            raise AssertionError("set up first")
        host, port = self._setup.host, self._setup.port
        name = host if self._tls is not None else None
        try:
            reader, writer = await asyncio.open_connection(host, port, ssl=self._tls, server_hostname=name)
            writer.write(request)
            status = await reader.readline()
            writer.close()
        except OSError:
            return False
        return b" 200 " in status

    def later(self, seconds: float, function: Any) -> None:
        async def run() -> None:
            await asyncio.sleep(seconds)
            await function()

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, setup: StreamsSetup) -> None:
        self._setup = setup
        self._tls = ssl.create_default_context(cafile=setup.ca) if setup.ca is not None else None
        number = 0
        for group in setup.groups:
            for rank in range(0, len(group.hosts), group.shared):
                self._processes.append(self._process(number + rank, group, rank))
            number += len(group.hosts)
        gate = asyncio.Semaphore(setup.at_once)

        async def enter(process: _StreamedProcess) -> None:
            async with gate:
                await process.connect()

        await asyncio.gather(*(enter(process) for process in self._processes))

    def _process(self, number: int, group: StreamGroup, rank: int) -> _StreamedProcess:
        if group.shared > 1:
            return _Relay(number, self, group, range(rank, rank + group.shared))
        return _StreamedProcess(number, self, _request(_STREAM, group.token, _hello(group, rank)))

    async def _until_ready(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._waiting() and time.monotonic() < deadline:  # noqa: ASYNC110 - an event per line would disturb the measurement
            await asyncio.sleep(0.05)

    def _waiting(self) -> int:
        return sum(not process.ready for process in self._processes)

    def _arrivals(self) -> Arrivals:
        received = [each for process in self._processes for each in process.drain()]
        opened, self.opened = self.opened, []
        return Arrivals(received, opened, self._waiting())


def _name(group: StreamGroup, rank: int) -> str:
    return f"{group.job}-{rank}"


def _hello(group: StreamGroup, rank: int) -> dict[str, Any]:
    host = group.hosts[rank]
    return {"process": _name(group, rank), "host": host, "rank": rank, "pid": 1, "step": None, "sdk": "benchmark"}


def _request(path: str, token: str, message: Mapping[str, Any]) -> bytes:
    body = json.dumps(message).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: supervisor\r\n"
        f"Authorization: Bearer {token}\r\nHeartbeat-Seconds: 20\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _without_head(received: list[tuple[float, bytes]]) -> list[tuple[float, bytes]]:
    """Return the data after the response head, or nothing until the head is complete."""
    head = b""
    for position, (at, data) in enumerate(received):
        head += data
        if (end := head.find(_HEAD_END)) >= 0:
            return [(at, head[end + len(_HEAD_END) :]), *received[position + 1 :]]
    return []


def _parse_directive(at: float, index: int, message: dict[str, Any]) -> DirectiveReceived:
    notice = message["notice"]
    return DirectiveReceived(at, index, message["directive"], message["generation"], notice["id"] if notice else "")


if __name__ == "__main__":
    serve(msgspec.json.Decoder(StreamsSetup | DrainStreams | StreamsReady), _Clients().handle)
