"""A supervisor with many agents, jobs and streams, which are protocol clients in other processes."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.clients import agents, streams
from benchmarks.delays import DelayedPeer
from benchmarks.harness.client import ClientProcess
from benchmarks.harness.launchers import JobShape, LaunchedJob, LoadLaunchers
from benchmarks.harness.server import BenchmarkServer
from simulator.cloud.process import TooLate

_READY_SECONDS = 300.0
_MAX_AGENTS = 1000
_MAX_STREAMS = 5000
"""Limit per client process, which would otherwise be the bottleneck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSize:
    """The size of a fleet. `jobs` share `nodes` and `streams` evenly, and each node has an agent.

    `spare` is how many nodes a job can lose before it is stopped. If `shared`, the processes of a node share a stream.
    """

    nodes: int
    streams: int
    jobs: int
    spare: int = 0
    framework: str = "horovod"
    shared: bool = False

    def node_names(self) -> list[str]:
        return [f"node-{number}" for number in range(self.nodes)]

    def job_shapes(self) -> list[JobShape]:
        names, each = self.node_names(), self.nodes // self.jobs
        return [
            JobShape(
                name=f"job-{number}",
                hosts=names[number * each : (number + 1) * each],
                min_workers=each - self.spare,
                framework=self.framework,
            )
            for number in range(self.jobs)
        ]


class AgentFleet:
    def __init__(self, size: FleetSize, server: BenchmarkServer) -> None:
        self.size = size
        self.server = server
        self.jobs: list[LaunchedJob] = []
        self._agents: list[ClientProcess[agents.NoticeAnswer]] = []
        self._streams: list[ClientProcess[streams.Arrivals]] = []
        self._agents_of: dict[str, ClientProcess[agents.NoticeAnswer]] = {}
        self.peers: list[DelayedPeer] = []
        self.reconnected = 0
        self._stack = AsyncExitStack()
        self._launchers: LoadLaunchers | None = None
        self._offsets: list[int] = []

    async def start_agents(self) -> None:
        """Connect an agent for every node."""
        tokens = self.server.tokens
        every = self.size.node_names()
        for start in range(0, len(every), _MAX_AGENTS):
            names = every[start : start + _MAX_AGENTS]
            client = await ClientProcess.start("agents", agents.NoticeAnswer)
            self._stack.push_async_callback(client.end)
            self._agents.append(client)
            nodes = [agents.LoadNode(name, tokens.agent(name)) for name in names]
            await client.request(agents.AgentsSetup(self.server.endpoints.grpc, _text(self.server.ca), nodes))
            self._agents_of.update(dict.fromkeys(names, client))

    async def start_jobs(self) -> None:
        """Register all jobs and wait until they run."""
        launchers = LoadLaunchers(self.server.endpoints.http, self.server.tokens, self.server.ca)
        self._launchers = await self._stack.enter_async_context(launchers)
        self.jobs = self._launchers.launch(self.size.job_shapes())
        await self._launchers.until_running(self.jobs, _READY_SECONDS)

    async def start_streams(self) -> None:
        """Open all streams and wait for the first line of each."""
        groups = self._groups()
        address = self.server.endpoints.http_address
        for batch in _by_size(groups, _MAX_STREAMS):
            client = await ClientProcess.start("streams", streams.Arrivals)
            self._stack.push_async_callback(client.end)
            self._streams.append(client)
            self._offsets.append(len(self.peers))
            self.peers += [DelayedPeer(g.job, host, rank) for g in batch for rank, host in enumerate(g.hosts)]
            await client.request(streams.StreamsSetup(address.host, address.port, _text(self.server.ca), batch))
        await self.until_ready(_READY_SECONDS)

    async def until_ready(self, seconds: float) -> list[float]:
        """Wait until all streams have a line, and return when they got it, since the last call.

        Raises:
            TooLate: Some have none.
        """
        opened: list[float] = []
        for client in self._streams:
            arrivals = await client.request(streams.StreamsReady(seconds))
            opened += arrivals.opened
            if arrivals.waiting:
                raise TooLate(f"{arrivals.waiting} streams have received no line")
        return opened

    async def notice(self, nodes: Sequence[str], over: float, seconds_left: float = 3600.0) -> list[agents.NoticeSent]:
        """Send notices for these nodes, evenly over `over` seconds. Returns when all are durable."""
        by_client: dict[ClientProcess[agents.NoticeAnswer], list[str]] = {}
        for node in nodes:
            by_client.setdefault(self._agents_of[node], []).append(node)
        sent: list[agents.NoticeSent] = []
        for client, names in by_client.items():
            client.send(agents.SendNotice(names, over, seconds_left))
        for client in by_client:
            answer = await client.receive()
            sent += answer.sent
            self.reconnected += answer.reconnected
        return sent

    async def received(self) -> list[streams.DirectiveReceived]:
        """Return the directives received since the last call, with `stream` counted over all clients.

        Raises what has ended a launcher: the processes of its job would never be told.
        """
        if self._launchers is not None:
            self._launchers.check()
        received: list[streams.DirectiveReceived] = []
        for offset, client in zip(self._offsets, self._streams, strict=True):
            arrivals = await client.request(streams.DrainStreams())
            received += [
                streams.DirectiveReceived(one.at, one.stream + offset, *_rest(one)) for one in arrivals.received
            ]
        return received

    async def close(self) -> None:
        """End everything but the server."""
        await self._stack.aclose()

    def _groups(self) -> list[streams.StreamGroup]:
        each = self.size.streams // self.size.nodes
        return [
            streams.StreamGroup(
                job.shape.name,
                job.token,
                [host for host in job.shape.hosts for _ in range(each)],
                each if self.size.shared else 1,
            )
            for job in self.jobs
        ]


@asynccontextmanager
async def fleet(
    root: Path,
    size: FleetSize,
    *,
    tls: bool,
    settings: Mapping[str, str] = MappingProxyType({}),
    command: Sequence[str] = (),
) -> AsyncIterator[AgentFleet]:
    """Start a supervisor and its agents. The scenario starts jobs and streams."""
    server = BenchmarkServer(root, tls=tls, settings=settings, command=command)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        await server.start()
        one = AgentFleet(size, server)
        stack.push_async_callback(one.close)
        await one.start_agents()
        yield one


def _by_size(groups: Iterable[streams.StreamGroup], maximum: int) -> list[list[streams.StreamGroup]]:
    """Batch groups with at most `maximum` streams together. A larger group stays whole."""
    batches: list[list[streams.StreamGroup]] = [[]]
    size = 0
    for group in groups:
        opened = len(group.hosts) // group.shared
        if batches[-1] and size + opened > maximum:
            batches.append([])
            size = 0
        batches[-1].append(group)
        size += opened
    return batches


def _rest(received: streams.DirectiveReceived) -> tuple[str, int, str]:
    return received.directive, received.generation, received.notice


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
