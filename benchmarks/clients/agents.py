"""Simulates many node agents in one process, each with a connection of its own."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import msgspec
from kubeai.elastic.wire import WireBackoff
from reclaim.v1 import reclaim_pb2 as wire
from reclaim.v1.reclaim_pb2_grpc import ReclaimServiceStub

from benchmarks.clients.jsonlines import serve
from node_agent.channel import OPTIONS

# What agents and the SDK ask for by default.
_HEARTBEAT_SECONDS = 300.0


class LoadNode(msgspec.Struct, frozen=True):
    name: str
    token: str


class AgentsSetup(msgspec.Struct, frozen=True, tag=True):
    """The address to call, the agents, and the number of parallel calls."""

    target: str
    ca: str | None
    nodes: list[LoadNode]
    at_once: int = 20


class SendNotice(msgspec.Struct, frozen=True, tag=True):
    """Send a notice for each of these nodes, evenly over `over` seconds. Answered when all are acknowledged."""

    nodes: list[str]
    over: float
    seconds_left: float


class NoticeSent(msgspec.Struct, frozen=True):
    """When a notice was sent and when it was acknowledged (CLOCK_MONOTONIC)."""

    node: str
    at: float
    acknowledged_at: float


class NoticeAnswer(msgspec.Struct, frozen=True):
    """The result of a command. `reconnected` counts streams that were reopened since the start."""

    connected: int
    reconnected: int = 0
    sent: list[NoticeSent] = []


class _Agent:
    """Plays an agent: it reopens a lost stream and repeats its notice until it is acknowledged.

    Args:
        node: The agent's node.
        open_channel: Opens a connection. As for an agent, each stream has a new one, without gRPC's own backoff.
    """

    def __init__(self, node: LoadNode, open_channel: Callable[[], grpc.aio.Channel]) -> None:
        self.reconnected = 0
        self._node = node
        self._open_channel = open_channel
        self._writing = asyncio.Lock()
        self._welcomed = asyncio.Event()
        self._call: Any = None
        self._report: wire.NoticeReport | None = None
        self._acknowledged: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Keep a stream open."""
        backoff = WireBackoff()
        while True:
            try:
                async with self._open_channel() as channel:
                    await self._hold(channel)
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError):
                # gRPC reports a call that the supervisor cancels as CancelledError. Nothing here cancels an agent.
                if self._welcomed.is_set():
                    self.reconnected += 1
                    backoff.reset()
                self._welcomed.clear()
            await asyncio.sleep(backoff.next())

    async def welcomed(self) -> None:
        """Return once there is a stream."""
        await self._welcomed.wait()

    async def notice(self, seconds_left: float) -> NoticeSent:
        """Report that the node will be gone, and wait until that is durable."""
        name = self._node.name
        self._report = wire.NoticeReport(
            source="metadata",
            subject=wire.Subject(kind=wire.SUBJECT_KIND_NODE, name=name, uid=f"uid-{name}"),
            revision=1,
            announcement=wire.ANNOUNCEMENT_ACTIVE,
            seconds_left=seconds_left,
        )
        at = time.monotonic()
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            if self._welcomed.is_set():
                await self._write(wire.AgentMessage(notice=self._report))
        return NoticeSent(name, at, await self._acknowledged)

    async def _hold(self, channel: grpc.aio.Channel) -> None:
        metadata = (("authorization", f"Bearer {self._node.token}"),)
        self._call = ReclaimServiceStub(channel).Connect(metadata=metadata)  # type: ignore[call-arg]  # The stubs require all arguments.
        await self._write(wire.AgentMessage(hello=self._hello()))
        beating: asyncio.Task[None] | None = None
        try:
            while isinstance(message := await self._call.read(), wire.SupervisorMessage):
                match message.WhichOneof("message"):
                    case "welcome":
                        self._welcomed.set()
                        await self._repeat()
                        beating = asyncio.create_task(self._beat(message.welcome.heartbeat_seconds))
                    case "acknowledgement" if not self._acknowledged.done():
                        self._acknowledged.set_result(time.monotonic())
            await self._call.code()
        finally:
            if beating is not None:
                beating.cancel()
                await asyncio.gather(beating, return_exceptions=True)

    async def _repeat(self) -> None:
        """Send the notice if it appeared after the hello."""
        if self._report is not None and not self._acknowledged.done():
            await self._write(wire.AgentMessage(notice=self._report))

    def _hello(self) -> wire.Hello:
        name, report = self._node.name, self._report
        state = wire.SOURCE_STATE_CLEAR if report is None else wire.SOURCE_STATE_NOTICED
        return wire.Hello(
            node=name,
            node_uid=f"uid-{name}",
            session=1,
            agent_version="benchmark",
            sources=[wire.SourceReport(source="metadata", state=state)],
            notices=[] if report is None else [report],
            heartbeat_seconds=_HEARTBEAT_SECONDS,
        )

    async def _beat(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            await self._write(wire.AgentMessage(heartbeat=wire.Heartbeat()))

    async def _write(self, message: wire.AgentMessage) -> None:
        async with self._writing:
            await self._call.write(message)


class _Agents:
    def __init__(self) -> None:
        self._agents: dict[str, _Agent] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def handle(self, command: AgentsSetup | SendNotice) -> NoticeAnswer:
        match command:
            case AgentsSetup():
                await self._start(command)
                return self._answer([])
            case SendNotice():
                return self._answer(await self._notice(command))

    def _answer(self, sent: Sequence[NoticeSent]) -> NoticeAnswer:
        return NoticeAnswer(len(self._agents), sum(agent.reconnected for agent in self._agents.values()), list(sent))

    async def _start(self, setup: AgentsSetup) -> None:
        gate = asyncio.Semaphore(setup.at_once)
        open_channel = partial(_channel, setup.target, _credentials(setup.ca))

        async def enter(node: LoadNode) -> None:
            async with gate:
                agent = self._agents[node.name] = _Agent(node, open_channel)
                self._tasks.append(asyncio.create_task(agent.run()))
                await agent.welcomed()

        await asyncio.gather(*(enter(node) for node in setup.nodes))

    async def _notice(self, command: SendNotice) -> Sequence[NoticeSent]:
        began = time.monotonic()
        pause = command.over / len(command.nodes)

        async def one(turn: int, node: str) -> NoticeSent:
            await asyncio.sleep(began + turn * pause - time.monotonic())
            return await self._agents[node].notice(command.seconds_left)

        return await asyncio.gather(*(one(turn, node) for turn, node in enumerate(command.nodes)))


def _credentials(ca: str | None) -> grpc.ChannelCredentials | None:
    return None if ca is None else grpc.ssl_channel_credentials(Path(ca).read_bytes())


def _channel(target: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=OPTIONS)
    return grpc.aio.secure_channel(target, credentials, options=OPTIONS)


if __name__ == "__main__":
    serve(msgspec.json.Decoder(AgentsSetup | SendNotice), _Agents().handle)
