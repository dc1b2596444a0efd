"""A supervisor with many agents, jobs and streams, all of them protocol clients in processes of their own."""

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.clients import agents, streams
from benchmarks.delays import Peer
from benchmarks.harness.client import Client
from benchmarks.harness.launchers import JobShape, LaunchedJob, Launchers
from benchmarks.harness.server import Server
from simulator.cloud.process import TooLate

_READY_SECONDS = 300.0
_MAX_AGENTS = 1000
_MAX_STREAMS = 5000
"""In one client process: more would make it the bottleneck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSize:
    """How much of everything: `jobs` share `nodes` and `streams` evenly, each node with its own agent.

    `spare` is how many nodes a job can lose before it is stopped.
    """

    nodes: int
    streams: int
    jobs: int
    spare: int = 0
    framework: str = "horovod"

    def node_names(self) -> list[str]:
        """All nodes."""
        return [f"node-{number}" for number in range(self.nodes)]

    def job_shapes(self) -> list[JobShape]:
        """All jobs."""
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


class Fleet:
    """All that was started, and the server."""

    def __init__(self, size: FleetSize, server: Server) -> None:
        self.size = size
        self.server = server
        self.jobs: list[LaunchedJob] = []
        self._agents: list[Client[agents.Answer]] = []
        self._streams: list[Client[streams.Arrivals]] = []
        self._agents_of: dict[str, Client[agents.Answer]] = {}
        self.peers: list[Peer] = []
        self.reconnected = 0
        self._stack = AsyncExitStack()
        self._launchers: Launchers | None = None
        self._offsets: list[int] = []

    async def start_agents(self) -> None:
        """Connects an agent for every node."""
        tokens = self.server.tokens
        every = self.size.node_names()
        for start in range(0, len(every), _MAX_AGENTS):
            names = every[start : start + _MAX_AGENTS]
            client = await Client.start("agents", agents.Answer)
            self._stack.push_async_callback(client.end)
            self._agents.append(client)
            nodes = [agents.Node(name, tokens.agent(name)) for name in names]
            await client.request(agents.Setup(self.server.endpoints.grpc, _text(self.server.ca), nodes))
            self._agents_of.update(dict.fromkeys(names, client))

    async def start_jobs(self) -> None:
        """Registers all jobs and lets them run."""
        launchers = Launchers(self.server.endpoints.http, self.server.tokens, self.server.ca)
        self._launchers = await self._stack.enter_async_context(launchers)
        self.jobs = self._launchers.launch(self.size.job_shapes())
        await self._launchers.until_running(self.jobs, _READY_SECONDS)

    async def start_streams(self) -> None:
        """Opens all streams and waits for the first line of each."""
        groups = self._groups()
        address = self.server.endpoints.http_address
        for batch in _by_size(groups, _MAX_STREAMS):
            client = await Client.start("streams", streams.Arrivals)
            self._stack.push_async_callback(client.end)
            self._streams.append(client)
            self._offsets.append(len(self.peers))
            self.peers += [Peer(g.job, host, rank) for g in batch for rank, host in enumerate(g.hosts)]
            await client.request(streams.Setup(address.host, address.port, _text(self.server.ca), batch))
        await self.until_ready(_READY_SECONDS)

    async def until_ready(self, seconds: float) -> list[float]:
        """Waits until all streams have their first line; returns when they did since this was last asked.

        Raises:
            TooLate: Some do not.
        """
        opened: list[float] = []
        for client in self._streams:
            arrivals = await client.request(streams.Ready(seconds))
            opened += arrivals.opened
            if arrivals.waiting:
                raise TooLate(f"{arrivals.waiting} streams have no line")
        return opened

    async def notice(self, nodes: Sequence[str], over: float, seconds_left: float = 3600.0) -> list[agents.Sent]:
        """Lets these nodes be noticed, evenly over so many seconds; returns when all notices are durable."""
        by_client: dict[Client[agents.Answer], list[str]] = {}
        for node in nodes:
            by_client.setdefault(self._agents_of[node], []).append(node)
        sent: list[agents.Sent] = []
        for client, names in by_client.items():
            client.send(agents.Notice(names, over, seconds_left))
        for client in by_client:
            answer = await client.receive()
            sent += answer.sent
            self.reconnected += answer.reconnected
        return sent

    async def received(self) -> list[streams.DirectiveReceived]:
        """All directives that have arrived since this was last asked, with `stream` counted over all clients."""
        received: list[streams.DirectiveReceived] = []
        for offset, client in zip(self._offsets, self._streams, strict=True):
            arrivals = await client.request(streams.Drain())
            received += [
                streams.DirectiveReceived(each.at, each.stream + offset, *_rest(each)) for each in arrivals.received
            ]
        return received

    async def close(self) -> None:
        """Ends everything but the server."""
        await self._stack.aclose()

    def _groups(self) -> list[streams.Group]:
        each = self.size.streams // self.size.nodes
        return [
            streams.Group(job.shape.name, job.token, [host for host in job.shape.hosts for _ in range(each)])
            for job in self.jobs
        ]


@asynccontextmanager
async def fleet(
    root: Path, size: FleetSize, *, tls: bool, settings: Mapping[str, str] = MappingProxyType({})
) -> AsyncIterator[Fleet]:
    """A supervisor, with more of its settings, and its agents; jobs and streams are started by the scenario."""
    server = Server(root, tls=tls, settings=settings)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        await server.start()
        one = Fleet(size, server)
        stack.push_async_callback(one.close)
        await one.start_agents()
        yield one


def _by_size(groups: Iterable[streams.Group], maximum: int) -> list[list[streams.Group]]:
    """Groups that together have at most so many processes; one that has more by itself stays whole."""
    batches: list[list[streams.Group]] = [[]]
    size = 0
    for group in groups:
        if batches[-1] and size + len(group.hosts) > maximum:
            batches.append([])
            size = 0
        batches[-1].append(group)
        size += len(group.hosts)
    return batches


def _rest(received: streams.DirectiveReceived) -> tuple[str, int, str]:
    return received.directive, received.generation, received.notice


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
