"""The alternative to an agreed step: all ranks meet at a barrier of a key-value store, as frameworks do it.

When a rank learns of the reclaim, it blocks at its next step boundary, publishes its number of finished steps and
waits until all others have done the same. The step to stop at is the largest number plus one. `store` serves the
store over TCP, `ranks` plays many ranks in one process. The store itself computes the maximum, which costs it less
than answering each rank's read of all numbers.
"""

import asyncio
import sys
import time
from typing import cast

import msgspec

from benchmarks.clients.jsonlines import serve
from benchmarks.clients.lockstep import Lockstep

_NOTICE = b"notice\n"


class Listen(msgspec.Struct, frozen=True, tag=True):
    """Serve a store for so many ranks."""

    world_size: int


class Announce(msgspec.Struct, frozen=True, tag=True):
    """Tell all ranks of the reclaim, once all are connected."""


class Listening(msgspec.Struct, frozen=True, tag=True):
    """The store's port, and when the announcement was sent (CLOCK_MONOTONIC; 0: there was none)."""

    port: int
    announced_at: float = 0.0


class JoinBarrier(msgspec.Struct, frozen=True, tag=True):
    """Connect so many ranks to the store. The first `late` learn of the reclaim `late_seconds` after the others."""

    port: int
    count: int
    clock: Lockstep
    late: int = 0
    late_seconds: float = 0.0


class Meet(msgspec.Struct, frozen=True, tag=True):
    """Wait until every rank knows the step."""


class Met(msgspec.Struct, frozen=True, tag=True):
    """For each rank, when it knew the step to stop at, and how long it was blocked before that step, in seconds."""

    known_at: list[float] = []
    blocked: list[float] = []
    steps: list[int] = []


class _BarrierStore:
    def __init__(self) -> None:
        self._ranks: list[asyncio.Transport] = []
        self._published: list[int] = []
        self._world_size = 0
        self._port = 0
        self._complete = asyncio.Event()

    async def handle(self, command: Listen | Announce) -> Listening:
        match command:
            case Listen(world_size):
                self._world_size = world_size
                server = await asyncio.get_running_loop().create_server(lambda: _Peer(self), "127.0.0.1", 0)
                self._port = server.sockets[0].getsockname()[1]
                return Listening(self._port)
            case Announce():
                await self._complete.wait()
                announced_at = time.monotonic()
                self._send_all(_NOTICE)
                return Listening(self._port, announced_at)

    def joined(self, rank: asyncio.Transport) -> None:
        self._ranks.append(rank)
        if len(self._ranks) == self._world_size:
            self._complete.set()

    def published(self, step: int) -> None:
        self._published.append(step)
        if len(self._published) == self._world_size:
            self._send_all(b"%d\n" % (max(self._published) + 1))

    def _send_all(self, line: bytes) -> None:
        for rank in self._ranks:
            rank.write(line)


class _Peer(asyncio.Protocol):
    """The store's side of one connection."""

    def __init__(self, store: _BarrierStore) -> None:
        self._store = store

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._store.joined(cast("asyncio.Transport", transport))

    def data_received(self, data: bytes) -> None:
        self._store.published(int(data))


class _Rank(asyncio.Protocol):
    def __init__(self, clock: Lockstep, late_seconds: float) -> None:
        self._clock = clock
        self._late_seconds = late_seconds
        self._published = 0
        self.met: asyncio.Future[tuple[float, float, int]] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if data == _NOTICE:
            asyncio.get_running_loop().call_later(self._late_seconds, self._publish)
        else:
            self._know(int(data))

    def _publish(self) -> None:
        self._published = self._clock.finished(time.monotonic())
        self._transport.write(b"%d\n" % self._published)

    def _know(self, step: int) -> None:
        now = time.monotonic()
        blocked = max(0.0, now - self._clock.finished_at(self._published + 1))
        self.met.set_result((now, blocked, step))


class _MeetingRanks:
    def __init__(self) -> None:
        self._ranks: list[_Rank] = []

    async def handle(self, command: JoinBarrier | Meet) -> Met:
        match command:
            case JoinBarrier():
                await self._join(command)
                return Met()
            case Meet():
                met = await asyncio.gather(*(rank.met for rank in self._ranks))
                return Met(*(list(column) for column in zip(*met, strict=True)))

    async def _join(self, join: JoinBarrier) -> None:
        loop = asyncio.get_running_loop()
        for number in range(join.count):
            rank = _Rank(join.clock, join.late_seconds if number < join.late else 0.0)
            self._ranks.append(rank)
            await loop.create_connection(lambda rank=rank: rank, "127.0.0.1", join.port)  # type: ignore[misc]


def main(arguments: list[str]) -> None:
    """Run one of the two until the harness closes stdin."""
    match arguments:
        case ["store"]:
            serve(msgspec.json.Decoder(Listen | Announce), _BarrierStore().handle)
        case _:
            serve(msgspec.json.Decoder(JoinBarrier | Meet), _MeetingRanks().handle)


if __name__ == "__main__":
    main(sys.argv[1:])
