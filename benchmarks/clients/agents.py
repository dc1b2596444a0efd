"""Many node agents in one process: the agents' wire without the agents, each on a connection of its own."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import grpc
import msgspec
from reclaim.v1 import reclaim_pb2 as wire
from reclaim.v1.reclaim_pb2_grpc import ReclaimServiceStub

from benchmarks.clients.speech import serve

# Without it, all channels of a process to one address share one connection.
_OPTIONS = [("grpc.use_local_subchannel_pool", 1)]


class Node(msgspec.Struct, frozen=True):
    """A node and its agent's token."""

    name: str
    token: str


class Setup(msgspec.Struct, frozen=True, tag=True):
    """Whom to call, as whom, and how many calls at a time."""

    target: str
    ca: str | None
    nodes: list[Node]
    at_once: int = 20


class Notice(msgspec.Struct, frozen=True, tag=True):
    """Send a notice for each of these nodes, evenly over so many seconds; answered when all are acknowledged."""

    nodes: list[str]
    over: float
    seconds_left: float


class Sent(msgspec.Struct, frozen=True):
    """When a notice left the agent and when its acknowledgement arrived (CLOCK_MONOTONIC)."""

    node: str
    at: float
    acknowledged_at: float


class Answer(msgspec.Struct, frozen=True):
    """What came of a command."""

    connected: int
    sent: list[Sent] = []


class _Agent:
    """One agent's stream."""

    def __init__(self, node: Node, channel: grpc.aio.Channel) -> None:
        self._node = node
        self._channel = channel
        self._writing = asyncio.Lock()
        self._acknowledged: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._revision = 0
        metadata = (("authorization", f"Bearer {node.token}"),)
        self._call = ReclaimServiceStub(channel).Connect(metadata=metadata)  # type: ignore[call-arg]  # The stubs want all.

    async def connect(self) -> float:
        """Says hello; returns the seconds between heartbeats."""
        sources = [wire.SourceReport(source="metadata", state=wire.SOURCE_STATE_CLEAR)]
        name = self._node.name
        hello = wire.Hello(node=name, node_uid=f"uid-{name}", session=1, agent_version="benchmark", sources=sources)
        await self._write(wire.AgentMessage(hello=hello))
        first = await self._call.read()
        if not isinstance(first, wire.SupervisorMessage):
            raise ConnectionError(f"the agent of {name} was not welcomed")
        return first.welcome.heartbeat_seconds

    async def read(self) -> None:
        """Until the stream ends."""
        while isinstance(message := await self._call.read(), wire.SupervisorMessage):
            if message.WhichOneof("message") == "acknowledgement" and not self._acknowledged.done():
                self._acknowledged.set_result(time.monotonic())

    async def beat(self, seconds: float) -> None:
        """Heartbeats until the stream ends."""
        while True:
            await asyncio.sleep(seconds)
            await self._write(wire.AgentMessage(heartbeat=wire.Heartbeat()))

    async def notice(self, seconds_left: float) -> Sent:
        """Reports that the node will go, and waits until that is durable."""
        self._revision += 1
        self._acknowledged = asyncio.get_running_loop().create_future()
        name = self._node.name
        report = wire.NoticeReport(
            source="metadata",
            subject=wire.Subject(kind=wire.SUBJECT_KIND_NODE, name=name, uid=f"uid-{name}"),
            revision=self._revision,
            announcement=wire.ANNOUNCEMENT_ACTIVE,
            seconds_left=seconds_left,
        )
        at = time.monotonic()
        await self._write(wire.AgentMessage(notice=report))
        return Sent(name, at, await self._acknowledged)

    async def close(self) -> None:
        """Goes away."""
        self._call.cancel()
        await self._channel.close(None)

    async def _write(self, message: wire.AgentMessage) -> None:
        async with self._writing:
            await self._call.write(message)


class _Agents:
    """All agents of this process."""

    def __init__(self) -> None:
        self._agents: dict[str, _Agent] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def handle(self, command: Setup | Notice) -> Answer:
        """Does what the harness says."""
        match command:
            case Setup():
                await self._start(command)
                return Answer(len(self._agents))
            case Notice():
                return Answer(len(self._agents), list(await self._notice(command)))

    async def _start(self, setup: Setup) -> None:
        gate = asyncio.Semaphore(setup.at_once)
        credentials = _credentials(setup.ca)

        async def enter(node: Node) -> None:
            async with gate:
                channel = _channel(setup.target, credentials)
                agent = self._agents[node.name] = _Agent(node, channel)
                seconds = await agent.connect()
            self._tasks += [asyncio.create_task(agent.read()), asyncio.create_task(agent.beat(seconds))]

        await asyncio.gather(*(enter(node) for node in setup.nodes))

    async def _notice(self, command: Notice) -> Sequence[Sent]:
        began = time.monotonic()
        pause = command.over / len(command.nodes)

        async def one(turn: int, node: str) -> Sent:
            await asyncio.sleep(began + turn * pause - time.monotonic())
            return await self._agents[node].notice(command.seconds_left)

        return await asyncio.gather(*(one(turn, node) for turn, node in enumerate(command.nodes)))


def _credentials(ca: str | None) -> grpc.ChannelCredentials | None:
    return None if ca is None else grpc.ssl_channel_credentials(Path(ca).read_bytes())


def _channel(target: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=_OPTIONS)
    return grpc.aio.secure_channel(target, credentials, options=_OPTIONS)


if __name__ == "__main__":
    serve(msgspec.json.Decoder(Setup | Notice), _Agents().handle)
