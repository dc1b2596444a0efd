"""Receivers of notifications, kind and hostile ones, on real sockets; and the file that names them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.domain.ids import JobName
from supervisor.observability.notifications.message import NotificationKind, Occurrence
from tests.testkit.waiting import until

SECRET = "/services/T000/B000/a-secret-path"
Behaviour = Callable[["Receiver", asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@dataclass
class Receiver:
    """A server that reads each request and then does as its behaviour says. `requests` are the heads and bodies."""

    behaviour: Behaviour
    requests: list[tuple[str, bytes]] = field(default_factory=list)
    connections: int = 0
    url: str = ""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The JSON bodies so far."""
        return [json.loads(body) for _, body in self.requests]

    async def has(self, count: int) -> None:
        """Waits for so many requests."""
        await until(lambda: len(self.requests) >= count)

    async def on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next(int(line.split(":")[1]) for line in head.splitlines() if line.lower().startswith("content-l"))
            self.requests.append((head, await reader.readexactly(length)))
            await self.behaviour(self, reader, writer)
        writer.transport.abort()


def answering(status: int, *headers: str, body: bytes = b"ok") -> Behaviour:
    async def answer(_receiver: Receiver, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = "".join(
            f"{line}\r\n" for line in (f"HTTP/1.1 {status} Status", *headers, f"Content-Length: {len(body)}")
        )
        writer.write(head.encode() + b"\r\n" + body)
        await writer.drain()
        writer.close()

    return answer


def at_first(behaviour: Behaviour, times: int, then: Behaviour) -> Behaviour:
    async def changing(receiver: Receiver, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await (behaviour if len(receiver.requests) <= times else then)(receiver, reader, writer)

    return changing


async def hang(_receiver: Receiver, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """Never answers; ends when the sender gives up."""
    await reader.read()


async def reset(_receiver: Receiver, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def talk_for_ever(_receiver: Receiver, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accepts, with a body that never ends."""
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        await writer.drain()


async def endless_head(_receiver: Receiver, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"X-More: " + b"x" * 4096 + b"\r\n")
        await writer.drain()


async def garbage(_receiver: Receiver, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x16\x03\x01\x02\x00 this is no HTTP\r\n\r\n")
    await writer.drain()


@asynccontextmanager
async def receiving(behaviour: Behaviour) -> AsyncIterator[Receiver]:
    receiver = Receiver(behaviour)
    server = await asyncio.start_server(receiver.on_connection, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    receiver.url = f"http://127.0.0.1:{port}{SECRET}"
    try:
        yield receiver
    finally:
        server.close()


def configured(directory: Path, urls: dict[str, str], **changes: Any) -> Path:
    """The file with a target for each URL; `changes` are fields of every target."""
    targets = []
    for name, url in urls.items():
        (directory / f"{name}.url").write_text(url + "\n", encoding="utf-8")
        targets.append({"name": name, "urlFile": f"{name}.url", **changes})
    path = directory / "notifications.json"
    path.write_text(json.dumps({"cluster": "prod", "targets": targets}), encoding="utf-8")
    return path


def occurrence(
    kind: NotificationKind = NotificationKind.SUSPENDED,
    job: str | None = "team/trainingjob.bert",
    *,
    number: int = 1,
    drill: bool = False,
) -> Occurrence:
    return Occurrence(
        id=f"{kind}-{job}-{number}",
        kind=kind,
        text=f"Because of number {number}.",
        at=1_700_000_000.0 + number,
        namespace="" if job is None else job.partition("/")[0],
        job=None if job is None else JobName(job),
        hosts=(f"n{number}",),
        drill=drill,
    )
