"""Simulates many ranks of one job in one process, which agree on a step with the supervisor.

Each has a stream of its own and the SDK's rules, `kubeai.elastic.agreement`. Nothing is parsed but lines that arrive.
"""

import asyncio
import json
import time
from collections.abc import Coroutine, Mapping
from typing import Any, cast

import msgspec
from kubeai.elastic.agreement import Answer, Held, Position, Purpose, parse, receive
from kubeai.elastic.framing import ChunkDecoder, LineSplitter

from benchmarks.clients.jsonlines import serve
from benchmarks.clients.lockstep import Lockstep

_HEAD_END = b"\r\n\r\n"


class Join(msgspec.Struct, frozen=True, tag=True):
    """Open the streams of the ranks `first` to `first + count - 1` of a job, `ranks_per_host` on each of `hosts`.

    The answers of the first `late` ranks are sent `late_seconds` late.
    """

    host: str
    port: int
    job: str
    token: str
    hosts: list[str]
    first: int
    count: int
    world_size: int
    clock: Lockstep
    late: int = 0
    late_seconds: float = 0.0


class Agree(msgspec.Struct, frozen=True, tag=True):
    """Wait until every rank has committed itself to a step, at most `seconds`."""

    seconds: float


class Agreed(msgspec.Struct, frozen=True, tag=True):
    """When each rank was asked, saw the proposal that was committed, and was told the commit, and the steps.

    `unsettled` ranks were told none. Instants are CLOCK_MONOTONIC.
    """

    asked_at: list[float] = []
    proposed_at: list[float] = []
    committed_at: list[float] = []
    steps: list[int] = []
    unsettled: int = 0


class _Rank(asyncio.Protocol):
    def __init__(self, join: Join, number: int, owner: "_Ranks") -> None:
        self._join = join
        self._number = number
        self._owner = owner
        self._late_seconds = join.late_seconds if number < join.late else 0.0
        self._head: bytes | None = b""
        self._chunks = ChunkDecoder()
        self._lines = LineSplitter()
        self._held = Held()
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.committed: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.asked_at = 0.0
        self.proposed_at: dict[tuple[int, int], float] = {}
        self.committed_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        hello = {**self._identity(), "pid": 1, "step": None, "sdk": "benchmark"}
        cast("asyncio.Transport", transport).write(_request(self._join, "/v1/processes/stream", hello))

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if self._head is not None:
            self._head += data
            if _HEAD_END not in self._head:
                return
            data, self._head = self._head.partition(_HEAD_END)[2], None
        for line in self._lines.feed(self._chunks.feed(data)):
            message = json.loads(line)
            if message.get("type") == "directive":
                self._receive(message, now)

    def _receive(self, message: Mapping[str, Any], now: float) -> None:
        if not self.ready.done():
            self.ready.set_result(None)
        agreement = parse(message["agreement"])
        before = self._held.of(Purpose.STOP)
        self._held = receive(self._held, agreement, self._join.clock.finished(now))
        position = self._held.of(Purpose.STOP)
        if position is None or position == before:
            return
        self.asked_at = self.asked_at or now
        step = position.agreement.step
        if position.answer is Answer.ACCEPTED and step is not None:
            self.proposed_at[position.agreement.epoch, step] = now
        if position.answer is Answer.COMMITTED and step is not None and not self.committed.done():
            self.committed_at = now
            self.committed.set_result(step)
        self._owner.spawn(self._answer(position, message))

    async def _answer(self, position: Position, message: Mapping[str, Any]) -> None:
        if self._late_seconds:
            await asyncio.sleep(self._late_seconds)
        agreement, clock = position.agreement, self._join.clock
        about = {"kind": "agreement", "run": message["run"], "generation": message["generation"]}
        answer = {"epoch": agreement.epoch, "purpose": agreement.purpose, "at_step": agreement.step}
        present = {"step": clock.finished(time.monotonic()), "step_seconds": clock.step_seconds}
        report = {**self._identity(), **about, **answer, **present, "answer": position.answer}
        reader, writer = await asyncio.open_connection(self._join.host, self._join.port)
        writer.write(_request(self._join, "/v1/processes/report", report))
        await reader.readline()
        writer.close()

    def _identity(self) -> Mapping[str, Any]:
        join = self._join
        each = join.world_size // len(join.hosts)
        common = {"process": f"{join.job}-{self._number}", "host": join.hosts[self._number // each]}
        return {**common, "rank": self._number, "world_size": join.world_size, "agrees": ["stop"], "collective": True}


class _Ranks:
    def __init__(self) -> None:
        self._ranks: list[_Rank] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def handle(self, command: Join | Agree) -> Agreed:
        match command:
            case Join():
                await self._join(command)
                return Agreed()
            case Agree(seconds):
                await asyncio.wait([rank.committed for rank in self._ranks], timeout=seconds)
                return self._agreed()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _join(self, join: Join) -> None:
        loop = asyncio.get_running_loop()
        for number in range(join.first, join.first + join.count):
            rank = _Rank(join, number, self)
            self._ranks.append(rank)
            await loop.create_connection(lambda rank=rank: rank, join.host, join.port)  # type: ignore[misc]
        await asyncio.gather(*(rank.ready for rank in self._ranks))

    def _agreed(self) -> Agreed:
        settled = [rank for rank in self._ranks if rank.committed.done()]
        return Agreed(
            asked_at=[rank.asked_at for rank in settled],
            proposed_at=[max(rank.proposed_at.values(), default=rank.committed_at) for rank in settled],
            committed_at=[rank.committed_at for rank in settled],
            steps=[rank.committed.result() for rank in settled],
            unsettled=len(self._ranks) - len(settled),
        )


def _request(join: Join, path: str, body: Mapping[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: supervisor\r\nAuthorization: Bearer {join.token}\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


if __name__ == "__main__":
    serve(msgspec.json.Decoder(Join | Agree), _Ranks().handle)
