"""Proxies between the supervisor and its peers that behave as networks, load balancers and proxies do.

A `ByteWire` forwards the bytes of any connection, with TLS or without. `chaos_wire_grpc` and `chaos_wire_http` speak
the protocols and forward message by message. A seed decides which faults come, where and when; what they meet is left
to time.

Faults that a network makes:

- a connection is cut, also in the middle of a message, and what was on its way is lost;
- bytes or messages stand still for a while, in one direction or both, and then go on or are lost with the connection;
- no connection can be opened for a while, as when a load balancer is replaced;
- one end is gone and the other learns of it late; until then it receives what was on its way. So messages of an old
  connection arrive after those of a newer one, and a peer is connected twice;
- a post is delivered and its answer is lost, or the post arrives after the caller has given it up and made another
  call: it is repeated and overtaken.

Harsher than any network, as TCP repeats nothing within a connection, but survived by the contract, because each line is
the whole state and each notice has a revision: a message is repeated at once.

Not made, as the contract relies on TCP there: a message that is overtaken by the next one of its connection, or that is
lost on a connection that goes on. A message is dropped together with all that follow until the connection is cut. The
first message of a stream, its hello or welcome, is not repeated on it.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any, Protocol, Self

from servicekit.address import Address

_CHUNK_BYTES = 65536
FAULTY_CALLS = 0.4
"""The part of the posts, and of the streams that are opened while there are faults, that one happens to."""
HOLD_SECONDS = (0.05, 1.5)
"""How long something stands still: shorter and longer than a peer waits before it connects again."""


class ChaosWire(Protocol):
    def inject(self, random: Random) -> None:
        """Makes one fault."""

    def begin(self, random: Random) -> None:
        """Lets faults happen that are not made by `inject`, to whatever is opened from now on."""

    def heal(self) -> None:
        """Forwards everything from now on; what was cut stays cut."""

    def refuse(self, seconds: float) -> None:
        """Cuts everything and refuses connections for so long."""


async def inject(wires: Sequence[ChaosWire], random: Random, seconds: float, *, every: float) -> None:
    """Injects a fault `every` so many seconds on average, for so long; half way each wire refuses connections once."""
    begun = time.monotonic()
    refusing = list(wires)
    for wire in wires:
        wire.begin(random)
    while (elapsed := time.monotonic() - begun) < seconds:
        if refusing and elapsed > seconds / 2:
            refusing.pop().refuse(random.uniform(0.2, 1.0))
        random.choice(wires).inject(random)
        await asyncio.sleep(random.expovariate(1 / every))
    for wire in wires:
        wire.heal()


class Background:
    """Tasks that outlive those who start them, until the wire is closed."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        async def wait() -> None:
            await asyncio.sleep(seconds)
            act()

        self.start(wait())

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Lane:
    """One direction of a stream of messages; None is its end.

    Attributes:
        flows: Clear while messages stand still.
        drops: Whether messages are lost.
        repeats: Whether the next message comes twice.
    """

    def __init__(self) -> None:
        self.flows = asyncio.Event()
        self.flows.set()
        self.drops = self.repeats = False
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._is_first = True

    def put(self, message: bytes | None) -> None:
        is_first, self._is_first = self._is_first, False
        if message is None or is_first:
            self._messages.put_nowait(message)
        elif not self.drops:
            for _ in range(1 + self.repeats):
                self._messages.put_nowait(message)
            self.repeats = False

    async def take(self) -> bytes | None:
        message = await self._messages.get()
        await self.flows.wait()
        return message

    def heal(self) -> None:
        """Lets all messages flow, except where some were dropped: that connection is going to be cut."""
        self.repeats = False
        self.flows.set()


class MessageStream(Protocol):
    """A stream that a wire forwards message by message."""

    up: Lane
    down: Lane

    def cut(self) -> None:
        """Breaks the connection to the client."""


def cut_and_deliver_late(stream: MessageStream, random: Random, background: Background) -> None:
    """Lets the client go, and what it says from now on arrive when it has connected again."""
    stream.up.flows.clear()
    background.later(random.uniform(*HOLD_SECONDS), stream.cut)
    background.later(2 * HOLD_SECONDS[1] + random.uniform(*HOLD_SECONDS), stream.up.flows.set)


def inject_into_stream(stream: MessageStream, random: Random, background: Background) -> None:
    """Makes one fault to a stream."""
    lanes = (stream.up, stream.down)

    def stand_still() -> None:
        for lane in random.sample(lanes, random.randint(1, 2)):
            lane.flows.clear()
            background.later(random.uniform(*HOLD_SECONDS), lane.flows.set)

    def drop_and_cut() -> None:
        stream.up.drops = stream.down.drops = True
        background.later(random.uniform(*HOLD_SECONDS), stream.cut)

    def repeat() -> None:
        random.choice(lanes).repeats = True

    def late() -> None:
        cut_and_deliver_late(stream, random, background)

    random.choice((stream.cut, stand_still, late, drop_and_cut, repeat))()


class _WireConnection:
    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client = client
        self.server = server
        self.flows = asyncio.Event()
        self.flows.set()
        self.is_cut_within = False

    def abort(self) -> None:
        for writer in (self.client, self.server):
            writer.transport.abort()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards one direction; at its end the other end learns of it once bytes flow."""
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self.flows.wait()
                if self.is_cut_within:
                    writer.write(data[: len(data) // 2])
                    break
                writer.write(data)
                await writer.drain()
        await self.flows.wait()
        self.abort()


class ByteWire:
    """Forwards connections to `target`; a context manager.

    Attributes:
        address: Where it listens.
    """

    def __init__(self, target: Address) -> None:
        self._target = target
        self._connections: list[_WireConnection] = []
        self._refuses_until = 0.0
        self._background = Background()
        self.address = Address("127.0.0.1", 0)

    @classmethod
    @asynccontextmanager
    async def to(cls, target: Address) -> AsyncIterator[Self]:
        wire = cls(target)
        server = await asyncio.start_server(wire._accept, "127.0.0.1", 0, backlog=4096)
        wire.address = Address("127.0.0.1", server.sockets[0].getsockname()[1])
        try:
            yield wire
        finally:
            server.close()
            wire._abort_all()
            await wire._background.close()

    def inject(self, random: Random) -> None:
        if not self._connections:
            return
        connection = random.choice(self._connections)

        def cut_within() -> None:
            connection.is_cut_within = True

        def stand_still() -> None:
            connection.flows.clear()
            self._background.later(random.uniform(*HOLD_SECONDS), connection.flows.set)

        def stand_still_and_cut() -> None:
            connection.flows.clear()
            self._background.later(random.uniform(*HOLD_SECONDS), connection.abort)

        def lose_the_client() -> None:
            connection.flows.clear()
            connection.client.transport.abort()
            self._background.later(2 * HOLD_SECONDS[1], connection.flows.set)

        faults = (connection.abort, cut_within, stand_still, stand_still_and_cut, lose_the_client)
        random.choice(faults)()

    def begin(self, random: Random) -> None:
        pass

    def heal(self) -> None:
        self._refuses_until = 0.0
        for connection in self._connections:
            connection.is_cut_within = False

    def refuse(self, seconds: float) -> None:
        self._refuses_until = time.monotonic() + seconds
        self._abort_all()

    def _abort_all(self) -> None:
        for connection in self._connections:
            connection.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if time.monotonic() < self._refuses_until:
            writer.transport.abort()
            return
        try:
            answers, server = await asyncio.open_connection(self._target.host, self._target.port)
        except OSError:
            writer.transport.abort()
            return
        connection = _WireConnection(writer, server)
        self._connections.append(connection)
        try:
            up = self._background.start(connection.forward(reader, server))
            down = self._background.start(connection.forward(answers, writer))
            await asyncio.wait((up, down))
        finally:
            connection.abort()
            self._connections.remove(connection)


def trust(ca: str | None) -> ssl.SSLContext | bool:
    """Whom an HTTP client trusts: that CA file, or nobody in particular without TLS."""
    return True if ca is None else ssl.create_default_context(cafile=ca)
