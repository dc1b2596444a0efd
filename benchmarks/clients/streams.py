"""Simulates the streams of many training processes in one process.

Received bytes are time-stamped and kept, and parsed only when the harness asks, so that the client measures the server
and not itself.
"""

import asyncio
import json
import ssl
import time
from collections.abc import Iterator
from typing import Any, cast

import msgspec
from kubeai.elastic.framing import ChunkDecoder, LineSplitter
from kubeai.elastic.wire import Backoff

from benchmarks.clients.jsonlines import serve

_DIRECTIVE = b'"directive"'
_HEAD_END = b"\r\n\r\n"


class Group(msgspec.Struct, frozen=True):
    """The processes of one job: one per host, ranks from 0."""

    job: str
    token: str
    hosts: list[str]


class Setup(msgspec.Struct, frozen=True, tag=True):
    """The address to call, the processes, and the number of parallel calls at the start."""

    host: str
    port: int
    ca: str | None
    groups: list[Group]
    at_once: int = 50


class Drain(msgspec.Struct, frozen=True, tag=True):
    """Return everything received since the last call."""


class Ready(msgspec.Struct, frozen=True, tag=True):
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


class _Stream(asyncio.Protocol):
    def __init__(self, owner: "_Process") -> None:
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


class _Process:
    """Plays a training process, and keeps its stream open as the SDK does."""

    def __init__(self, index: int, clients: "_Clients", request: bytes) -> None:
        self.request = request
        self._index = index
        self._clients = clients
        self._backoff = Backoff()
        self._streams: list[_Stream] = []

    @property
    def ready(self) -> bool:
        return any(stream.ready for stream in self._streams)

    async def connect(self) -> None:
        """Connect until it succeeds."""
        while True:
            stream = _Stream(self)
            self._streams.append(stream)
            try:
                await self._clients.connect(stream)
            except OSError:
                self._streams.remove(stream)
                await asyncio.sleep(self._backoff.next())
            else:
                return

    def opened(self, at: float) -> None:
        self._backoff.reset()
        self._clients.opened.append(at)

    def lost(self) -> None:
        """Reconnect after the SDK's pause."""
        self._clients.later(self._backoff.next(), self.connect)

    def drain(self) -> list[DirectiveReceived]:
        messages = [each for stream in self._streams for each in stream.messages()]
        self._streams = [stream for stream in self._streams if not stream.is_lost]
        return [
            _parse_directive(at, self._index, message) for at, message in messages if message.get("type") == "directive"
        ]


class _Clients:
    def __init__(self) -> None:
        self.opened: list[float] = []
        self._setup: Setup | None = None
        self._tls: ssl.SSLContext | None = None
        self._processes: list[_Process] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def handle(self, command: Setup | Drain | Ready) -> Arrivals:
        match command:
            case Setup():
                await self._start(command)
            case Ready():
                await self._until_ready(command.seconds)
            case Drain():
                pass
        return self._arrivals()

    async def connect(self, stream: _Stream) -> None:
        if self._setup is None:
            raise AssertionError("set up first")
        host = self._setup.host if self._tls is not None else None
        loop = asyncio.get_running_loop()
        await loop.create_connection(
            lambda: stream, self._setup.host, self._setup.port, ssl=self._tls, server_hostname=host
        )

    def later(self, seconds: float, function: Any) -> None:
        async def run() -> None:
            await asyncio.sleep(seconds)
            await function()

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, setup: Setup) -> None:
        self._setup = setup
        self._tls = ssl.create_default_context(cafile=setup.ca) if setup.ca is not None else None
        for group in setup.groups:
            for rank, host in enumerate(group.hosts):
                self._processes.append(_Process(len(self._processes), self, _request(group, host, rank)))
        gate = asyncio.Semaphore(setup.at_once)

        async def enter(process: _Process) -> None:
            async with gate:
                await process.connect()

        await asyncio.gather(*(enter(process) for process in self._processes))

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


def _request(group: Group, host: str, rank: int) -> bytes:
    hello = {"process": f"{group.job}-{rank}", "host": host, "rank": rank, "pid": 1, "step": None, "sdk": "benchmark"}
    body = json.dumps(hello).encode()
    head = (
        "POST /v1/processes/stream HTTP/1.1\r\nHost: supervisor\r\n"
        f"Authorization: Bearer {group.token}\r\nHeartbeat-Seconds: 20\r\nContent-Length: {len(body)}\r\n\r\n"
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
    serve(msgspec.json.Decoder(Setup | Drain | Ready), _Clients().handle)
