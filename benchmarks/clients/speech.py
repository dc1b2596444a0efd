"""How simulated ranks speak with the supervisor: all ranks of a pod through one relay, or each for itself."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, cast

import msgspec
from kubeai.elastic.wire import ChunkDecoder, LineSplitter

from benchmarks.clients.ranks import LoadRank

_HEAD_END = b"\r\n\r\n"
_MAX_MESSAGES = 32
"""In one post, as in the SDK."""

OnLine = Callable[[Mapping[str, Any], float], None]
"""Called with a line of a stream, and when it was received."""


class SpokenService(msgspec.Struct, frozen=True):
    """The supervisor's address, and the job's token."""

    host: str
    port: int
    token: str

    def request(self, path: str, body: Mapping[str, Any]) -> bytes:
        """Return a call."""
        content = msgspec.json.encode(body)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: supervisor\r\nAuthorization: Bearer {self.token}\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        return head.encode() + content

    async def connect(self, protocol: asyncio.Protocol) -> None:
        """Open a connection."""
        await asyncio.get_running_loop().create_connection(lambda: protocol, self.host, self.port)


class Speaker(Protocol):
    """Speaks for some ranks."""

    async def open(self) -> None:
        """Open what the ranks need to hear their directives."""

    def report(self, report: Mapping[str, Any]) -> None:
        """Send a report."""


class Alone:
    """A rank with a stream of its own, and a new connection for each report."""

    def __init__(self, service: SpokenService, rank: LoadRank) -> None:
        self._service = service
        self._rank = rank
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Open the stream."""
        await self._service.connect(
            _SpokenStream(
                self._service.request("/v1/processes/stream", self._rank.hello()),
                lambda line, now: _hear(self, self._rank, line, now),
            )
        )

    def report(self, report: Mapping[str, Any]) -> None:
        """Send a report in the background."""
        task = asyncio.get_running_loop().create_task(self._post(report))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _post(self, report: Mapping[str, Any]) -> None:
        reader, writer = await asyncio.open_connection(self._service.host, self._service.port)
        writer.write(self._service.request("/v1/processes/report", report))
        await reader.readline()
        writer.close()


class SpeakingPod:
    """The ranks of a pod, of which one relays for all. It has one stream and one connection for messages."""

    def __init__(self, service: SpokenService, name: str, ranks: Collection[LoadRank]) -> None:
        self._service = service
        self._name = name
        self._ranks = {rank.process: rank for rank in ranks}
        self._messages = _Messages(service, name)

    async def open(self) -> None:
        """Open both and announce the ranks."""
        stream = _SpokenStream(self._service.request("/v1/relays/stream", {"relay": self._name}), self._hear)
        await self._service.connect(stream)
        await self._service.connect(self._messages)
        await stream.opened
        for rank in self._ranks.values():
            self._messages.send({"hello": rank.hello()})

    def report(self, report: Mapping[str, Any]) -> None:
        """Send a report together with others that wait."""
        self._messages.send({"report": report})

    def _hear(self, line: Mapping[str, Any], now: float) -> None:
        if line.get("type") == "relayed":
            for process in line["processes"]:
                _hear(self, self._ranks[process], line["line"], now)


def _hear(speaker: Speaker, rank: LoadRank, line: Mapping[str, Any], now: float) -> None:
    position = rank.receive(line, now)
    if position is None:
        return

    def answer() -> None:
        speaker.report(rank.report(line, position))

    if rank.late_seconds:
        asyncio.get_running_loop().call_later(rank.late_seconds, answer)
    else:
        answer()


class _SpokenStream(asyncio.Protocol):
    """Sends a hello and parses the lines. `opened` is done once it is accepted."""

    def __init__(self, hello: bytes, on_line: OnLine) -> None:
        self._hello = hello
        self._on_line = on_line
        self._head = b""
        self._chunks = ChunkDecoder()
        self._lines = LineSplitter()
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.Transport", transport).write(self._hello)  # uvloop's class is not a subclass of it.

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if not self.opened.done():
            self._head += data
            if _HEAD_END not in self._head:
                return
            self.opened.set_result(None)
            data = self._head.partition(_HEAD_END)[2]
        for line in self._lines.feed(self._chunks.feed(data)):
            self._on_line(msgspec.json.decode(line), now)


class _Messages(asyncio.Protocol):
    """A connection for one post after another: what comes during a post is sent together with the next one.

    The first answer of a pod does not wait for the others, as in the SDK, whose processes answer on their own.
    """

    def __init__(self, service: SpokenService, relay: str) -> None:
        self._service = service
        self._relay = relay
        self._transport: asyncio.Transport | None = None
        self._unsent: list[Mapping[str, Any]] = []
        self._posted = 0
        self._answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message now, or once the present post is answered."""
        self._unsent.append(message)
        self._post()

    def data_received(self, data: bytes) -> None:
        self._answer += data
        head, _, content = self._answer.partition(_HEAD_END)
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        if not length or len(content) < length:
            return
        if msgspec.json.decode(content) != {"answers": [{}] * self._posted}:
            raise AssertionError(f"the supervisor has refused messages: {content!r}")
        self._posted, self._answer = 0, b""
        self._post()

    def _post(self) -> None:
        if self._posted or not self._unsent or self._transport is None:
            return
        batch, self._unsent = self._unsent[:_MAX_MESSAGES], self._unsent[_MAX_MESSAGES:]
        self._posted = len(batch)
        self._transport.write(self._service.request("/v1/relays/messages", {"relay": self._relay, "messages": batch}))
