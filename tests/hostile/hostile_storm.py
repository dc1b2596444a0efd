"""Strangers' connections, as a process of its own: every kind of garbage that a port can meet, many at once.

`python -m tests.hostile.hostile_storm HTTP_ADDRESS GRPC_ADDRESS COUNT PATIENCE [tls]` says "raging" when it is under
way, and at the end, as JSON, how many connections of each kind there were and which of them the server has not ended.
"""

import argparse
import asyncio
import contextlib
import functools
import itertools
import json
import random
import socket
import ssl
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from servicekit.address import Address, parse

MAX_AT_ONCE = 500
SEED = 1
_DRIP_SECONDS = 0.1
_GRACE_SECONDS = 10.0
"""Beside its patience, for a server that has all of them at once."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_CONNECT = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/reclaim.v1.ReclaimService/Connect"),
    (b":authority", b"h"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)


class StormPace(Enum):
    AT_ONCE = auto()
    DRIP = auto()


class StormEnd(Enum):
    """How the connection ends, if the server does not end it before."""

    CLOSE = auto()
    RESET = auto()
    HALF = auto()
    SERVER = auto()


class Wrap(Enum):
    BARE = auto()
    TLS = auto()


EventDraft = Callable[[random.Random], bytes]


def noise(chance: random.Random) -> bytes:
    return chance.randbytes(chance.randrange(1, 2000))


def nothing(_chance: random.Random) -> bytes:
    return b""


def half_a_head(chance: random.Random) -> bytes:
    head = b"POST /v1/processes/report HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n"
    return head[: chance.randrange(1, len(head))]


def half_a_body(chance: random.Random) -> bytes:
    return b"POST /v1/launchers/report HTTP/1.1\r\nHost: h\r\nContent-Length: 999\r\n\r\n" + chance.randbytes(100)


def bad_chunks(chance: random.Random) -> bytes:
    return b"POST /v1/launchers/stream HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + chance.randbytes(50)


def no_token(_chance: random.Random) -> bytes:
    return b"GET /v1/status HTTP/1.1\r\nHost: h\r\n\r\n"


def many_requests(chance: random.Random) -> bytes:
    return b"GET /%x HTTP/1.1\r\nHost: h\r\n\r\n" % chance.getrandbits(64) * chance.randrange(1, 200)


@functools.cache  # Loading the system's certificates takes longer than all the rest of a connection.
def _first_flight() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    handshake = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    return outgoing.read()


def tls_hello(_chance: random.Random) -> bytes:
    """As a client says that takes the port for one with TLS, or does not go on."""
    return _first_flight()


def bad_frames(chance: random.Random) -> bytes:
    """HTTP/2, and then none."""
    return _PREFACE + chance.randbytes(chance.randrange(9, 500))


def bad_headers(chance: random.Random) -> bytes:
    return _PREFACE + _headers(chance.randbytes(80))


def call_without_token(_chance: random.Random) -> bytes:
    return _PREFACE + _headers(
        b"".join(bytes([0, len(name)]) + name + bytes([len(value)]) + value for name, value in _CONNECT)
    )


def _headers(block: bytes) -> bytes:
    return struct.pack(">I", len(block))[1:] + bytes([1, 4, 0, 0, 0, 1]) + block


SAYINGS: tuple[EventDraft, ...] = (
    nothing,
    noise,
    half_a_head,
    half_a_body,
    bad_chunks,
    no_token,
    many_requests,
    tls_hello,
    bad_frames,
    bad_headers,
    call_without_token,
)


class StormKind(NamedTuple):
    address: Address
    saying: EventDraft
    end: StormEnd
    pace: StormPace
    wrap: Wrap

    def __str__(self) -> str:
        return f"{self.saying.__name__} {self.end.name} {self.pace.name} {self.wrap.name} {self.address}"


@dataclass(frozen=True, slots=True)
class Storm:
    """Garbage for both addresses of one server that has so many seconds of patience; the same each time."""

    addresses: tuple[Address, Address]
    patience: float
    tls: bool
    made: Counter[str] = field(default_factory=Counter)
    never_ended: list[str] = field(default_factory=list)

    async def rage(self, count: int) -> None:
        """Makes so many connections, each of another kind, some hundreds at once; each must come to its end."""
        gate = asyncio.Semaphore(MAX_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for number, kind in enumerate(itertools.islice(itertools.cycle(self._kinds()), count)):
                await gate.acquire()
                task = group.create_task(self._connection(number, kind))
                task.add_done_callback(lambda _: gate.release())
                if number == min(count // 2, MAX_AT_ONCE - 1):
                    print("raging", flush=True)  # noqa: T201 - what this process says

    def _kinds(self) -> Iterator[StormKind]:
        wraps = list(Wrap) if self.tls else [Wrap.BARE]
        kinds = list(
            itertools.starmap(StormKind, itertools.product(self.addresses, SAYINGS, StormEnd, StormPace, wraps))
        )
        random.Random(SEED).shuffle(kinds)  # noqa: S311 - repeatable, not secret
        return iter(kinds)

    async def _connection(self, number: int, kind: StormKind) -> None:
        self.made[kind.saying.__name__] += 1
        chance = random.Random(SEED * 1_000_003 + number)  # noqa: S311 - as above
        try:
            async with asyncio.timeout(self.patience + _GRACE_SECONDS):
                await _meet(kind, chance)
        except TimeoutError:
            self.never_ended.append(str(kind))
        except OSError:
            pass  # Refused, reset: ended.


async def _meet(kind: StormKind, chance: random.Random) -> None:
    context = _trusting_anybody() if kind.wrap is Wrap.TLS else None
    reader, writer = await asyncio.open_connection(kind.address.host, kind.address.port, ssl=context)
    try:
        said = kind.saying(chance)
        if kind.pace is StormPace.AT_ONCE:
            writer.write(said)
        else:
            await _drip(writer, said, reader)
        await _end(kind.end, reader, writer)
    finally:
        writer.transport.abort()


@functools.cache
def _trusting_anybody() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


async def _drip(writer: asyncio.StreamWriter, said: bytes, reader: asyncio.StreamReader) -> None:
    """A byte now and then, until the other side has had enough of it."""
    for byte in said:
        if reader.at_eof():
            return
        writer.write(bytes([byte]))
        await asyncio.sleep(_DRIP_SECONDS)
        await writer.drain()


async def _end(how: StormEnd, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    if how is StormEnd.CLOSE:
        writer.close()
        await writer.wait_closed()
    elif how is StormEnd.RESET:
        connection: socket.socket = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    else:
        if how is StormEnd.HALF and writer.can_write_eof():
            writer.write_eof()
        while await reader.read(65536):
            pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("http", type=parse)
    parser.add_argument("grpc", type=parse)
    parser.add_argument("count", type=int)
    parser.add_argument("patience", type=float)
    parser.add_argument("tls", nargs="?")
    said = parser.parse_args()
    storm = Storm((said.http, said.grpc), said.patience, bool(said.tls))
    asyncio.run(storm.rage(said.count))
    json.dump({"made": storm.made, "never_ended": storm.never_ended}, sys.stdout)


if __name__ == "__main__":
    main()
