"""A supervisor with TLS, and a fleet that speaks to it through wires that may fail.

Agents are the node agent's own uplinks and outboxes, launchers are kubeai-run's own links and outboxes; training
processes are simulated, in other processes. Half of the fleet has its bytes forwarded, the other half its messages.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
from kubeai.elastic import wire
from kubeai.elastic.commands.link import LauncherLink, SupervisorAccess
from kubeai.elastic.commands.link import RunReportOutbox as LauncherOutbox
from kubeai.elastic.commands.orders import (
    JobRequest,
    Ordered,
    Rejected,
    RunnerEvent,
    RunOrder,
    RunOrderKind,
    RunReport,
)

from benchmarks.clients import streams
from benchmarks.harness.client import ClientProcess
from node_agent.channel import SupervisorEndpoint
from node_agent.node import ThisNode
from node_agent.notices import (
    AnnouncementState,
    NodeIdentity,
    NoticeReport,
    NoticeSubject,
    NoticeSubjectKind,
    PollResult,
    ReportedSource,
    SourceName,
)
from node_agent.outbox import NoticeOutbox
from node_agent.stream import SupervisorUplink
from servicekit.address import Address, parse
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from simulator.certificates import SimulatedAuthority
from supervisor.identity.tokens import Tokens
from supervisor.serving.servers import ENDPOINTS_FILE
from tests.chaos.chaos_service import ServiceLife, life
from tests.chaos.chaos_wire import ByteWire, ChaosWire, inject, trust
from tests.chaos.chaos_wire_grpc import AgentWire
from tests.chaos.chaos_wire_http import CallWire
from tests.testkit.serving import tls_settings
from tests.testkit.waiting import until

_SOURCE = SourceName("metadata")
_LEAD_SECONDS = 3600.0
_HEARTBEAT_SECONDS = 10.0
_AGENTS_AT_ONCE = 50
_STOPPED = 3

SETTINGS: Mapping[str, object] = {
    "log_format": "json",
    "heartbeat_seconds": 2.0,
    "window_seconds": 0.5,
    "resume_delay_seconds": 0.5,
    # Launchers and rank 0 may be away for as long as the wire keeps them.
    "launcher_live_seconds": 30.0,
    "lost_grace_seconds": 60.0,
    "rank_zero_grace_seconds": 5.0,
}


@dataclass(frozen=True, slots=True)
class Route:
    """Where peers call, and the CA that they trust; None: without TLS."""

    grpc: Address
    http: Address
    ca: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosJobPlan:
    """A job that can lose `spare` hosts. If `shared`, the processes of a host share a stream."""

    name: str
    hosts: tuple[str, ...]
    each: int
    spare: int
    route: Route
    shared: bool = False

    @property
    def streams(self) -> int:
        """How many streams its processes have."""
        return len(self.hosts) * (1 if self.shared else self.each)


class NoticedNode:
    """The agent of a node."""

    def __init__(self, node: str, token_file: Path, route: Route) -> None:
        self.node = node
        self.outbox = NoticeOutbox(8)
        self._revision = 0
        self._subject = NoticeSubject(NoticeSubjectKind.NODE, node, f"uid-{node}")
        this = ThisNode(node, self._subject.uid)
        this.describe(NodeIdentity(""))
        self.outbox.set_status(ReportedSource(_SOURCE, PollResult.CLEAR, time.monotonic()))
        self.uplink = SupervisorUplink(
            endpoint=SupervisorEndpoint(route.grpc, token_file, route.ca),
            node=this,
            outbox=self.outbox,
            clock=Clock(),
            heartbeat=_HEARTBEAT_SECONDS,
            version="chaos",
            bulkhead=Bulkhead(Clock()),
        )

    @property
    def is_durable(self) -> bool:
        """Whether the supervisor has acknowledged everything."""
        return not self.outbox.unacknowledged()

    def announce(self) -> None:
        self._report(AnnouncementState.ACTIVE, PollResult.NOTICED)

    def withdraw(self) -> None:
        self._report(AnnouncementState.WITHDRAWN, PollResult.CLEAR)

    def _report(self, announcement: AnnouncementState, state: PollResult) -> None:
        self._revision += 1
        now = time.monotonic()
        deadline = now + _LEAD_SECONDS if announcement is AnnouncementState.ACTIVE else None
        self.outbox.put(NoticeReport(_SOURCE, self._subject, self._revision, announcement, deadline))
        self.outbox.set_status(ReportedSource(_SOURCE, state, now))


class ChaosLauncher:
    """A job's launcher, which starts nothing: it reports each order as carried out."""

    def __init__(self, plan: ChaosJobPlan, token_file: Path) -> None:
        count = len(plan.hosts)
        self.plan = plan
        self.orders: list[RunOrder] = []
        self.rejections: list[Rejected] = []
        self._outbox = LauncherOutbox()
        self._outbox.publish(RunReport(hosts=plan.hosts))
        scheme = "http" if plan.route.ca is None else "https"
        self._supervisor = SupervisorAccess(f"{scheme}://{plan.route.http}", token_file, plan.route.ca)
        job = JobRequest(plan.name, "horovod", count - plan.spare, count, count, 0.0, None)
        self._link = LauncherLink(self._supervisor, job, self._outbox, self._on_event)

    def start(self) -> None:
        self._link.start()

    def stop(self) -> None:
        self._link.stop(timeout=10.0)

    @property
    def token(self) -> str:
        """The job token of the first run; empty before there is one."""
        return next((order.token for order in self.orders if order.kind is RunOrderKind.RUN), "")

    @property
    def is_running(self) -> bool:
        return self._outbox.latest.running

    def excluded(self) -> Counter[str]:
        """How often each host was excluded."""
        changes = pairwise([frozenset[str](), *(frozenset(order.exclusions) for order in self.orders)])
        return Counter(host for before, after in changes for host in after - before)

    def _on_event(self, event: RunnerEvent) -> None:
        if isinstance(event, Rejected):
            self.rejections.append(event)
        elif isinstance(event, Ordered):
            self.orders.append(event.order)
            self._follow(event.order)

    def _follow(self, order: RunOrder) -> None:
        before = self._outbox.latest
        if order.stopping:
            self._acknowledge(order)
        elif order.kind is RunOrderKind.RUN:
            report = replace(before, run=order.run, running=True, exit_code=None, applied=order.generation)
            self._outbox.publish(report)
        elif before.running:
            self._outbox.publish(replace(before, running=False, exit_code=_STOPPED, applied=order.generation))

    def _acknowledge(self, order: RunOrder) -> None:
        """Reports that rank 0 has left, until that is confirmed; as the SDK in its exit hook."""
        who = {"process": f"{self.plan.name}-0", "host": self.plan.hosts[0], "rank": 0}
        body = {**who, "step": 1, "run": order.run, "generation": order.generation, "kind": "left"}
        endpoint = replace(self._supervisor.address_now(), token=order.token)
        backoff = wire.WireBackoff()
        while not self._is_confirmed(endpoint, body):
            time.sleep(backoff.next())

    def _is_confirmed(self, endpoint: wire.CallAddress, body: Mapping[str, Any]) -> bool:
        try:
            wire.post(endpoint, "/v1/processes/report", body)
        except wire.CallRefused as error:
            return error.code == "run_is_over"
        except wire.Unreachable:
            return False
        return True


@dataclass(frozen=True, slots=True)
class ChaosPeer:
    job: str
    host: str
    rank: int


class ChaosProcesses:
    """The training processes of some jobs, and the directives that each has received."""

    def __init__(self, client: ClientProcess[streams.Arrivals], peers: Sequence[ChaosPeer]) -> None:
        self._client = client
        self._peers = peers
        self.jobs = {peer.job for peer in peers}
        self.received: dict[ChaosPeer, list[streams.DirectiveReceived]] = {peer: [] for peer in peers}

    @classmethod
    async def start(cls, launchers: Sequence[ChaosLauncher]) -> "ChaosProcesses":
        """The processes of jobs that have one route."""
        plans = [launcher.plan for launcher in launchers]
        route = plans[0].route
        groups = [_group(launcher) for launcher in launchers]
        client = await ClientProcess.start("streams", streams.Arrivals)
        peers = [ChaosPeer(group.job, host, rank) for group in groups for rank, host in enumerate(group.hosts)]
        ca = None if route.ca is None else str(route.ca)
        await client.request(streams.StreamsSetup(route.http.host, route.http.port, ca, groups))
        return cls(client, peers)

    async def all_ready(self) -> bool:
        """Takes what has arrived; returns whether all streams have had a line."""
        arrivals = await self._client.request(streams.DrainStreams())
        for each in arrivals.received:
            self.received[self._peers[each.stream]].append(each)
        return arrivals.waiting == 0

    async def end(self) -> None:
        await self._client.end()


def _group(launcher: ChaosLauncher) -> streams.StreamGroup:
    plan = launcher.plan
    hosts = [host for host in plan.hosts for _ in range(plan.each)]
    return streams.StreamGroup(plan.name, launcher.token, hosts, plan.each if plan.shared else 1)


class ChaosFleet:
    """Everybody who speaks to one supervisor."""

    def __init__(
        self,
        one: ServiceLife,
        wires: Sequence[ChaosWire],
        plans: Sequence[ChaosJobPlan],
        session: aiohttp.ClientSession,
    ) -> None:
        self.one = one
        self.plans = plans
        self.nodes: dict[str, NoticedNode] = {}
        self.launchers: dict[str, ChaosLauncher] = {}
        self._processes: list[ChaosProcesses] = []
        self._plans_of = {host: plan for plan in plans for host in plan.hosts}
        self._wires = wires
        self._session = session
        self._tokens = Tokens.load(one.directory)
        self._url = json.loads((one.directory / ENDPOINTS_FILE).read_bytes())["http"]
        self._uplinks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self._start_agents()
        self._start_launchers()
        await until(lambda: all(launcher.is_running for launcher in self.launchers.values()), "all jobs run")
        for launchers in _by_route(self.launchers.values()):
            self._processes.append(await ChaosProcesses.start(launchers))
        await self.settled()

    async def close(self) -> None:
        for processes in self._processes:
            await processes.end()
        await asyncio.gather(*(asyncio.to_thread(launcher.stop) for launcher in self.launchers.values()))
        for uplink in self._uplinks:
            uplink.cancel()
        await asyncio.gather(*self._uplinks, return_exceptions=True)

    async def settled(self) -> None:
        """Waits until everybody is connected, and everything that was reported is durable."""
        nodes = self.nodes.values()
        await until(lambda: all(node.uplink.welcomed and node.is_durable for node in nodes), self._unsettled)
        for processes in self._processes:
            await until(processes.all_ready, "each process has a line")

    @asynccontextmanager
    async def faults(self, random: Random, seconds: float, *, every: float) -> AsyncIterator[None]:
        """Lets the wires fail for so long, and at least for the body; settled at the end."""
        injecting = asyncio.create_task(inject(self._wires, random, seconds, every=every))
        try:
            yield
            await injecting
        finally:
            injecting.cancel()
        await self.settled()

    async def status(self) -> dict[str, Any]:
        value = await self._page({})
        while value["next"] is not None:
            page = await self._page({"after": value["next"]})
            for part in ("jobs", "notices", "unconfirmed", "agents"):
                value[part] += page[part]
            value["next"] = page["next"]
        return value

    async def internal_faults(self) -> str:
        """Returns what the supervisor has logged of its own faults, with tracebacks; empty if it counts none."""
        if "internal" not in {each["code"] for each in (await self.status())["refused"]}:
            return ""
        return self.one.said_of("internal") or "a fault is counted, but none is logged"

    @property
    def calls(self) -> int:
        """How many HTTP calls are open while all are connected: of launchers, and of processes that have not ended."""
        jobs = {job for each in self._processes for job in each.jobs}
        return len(self.launchers) + sum(plan.streams for plan in self.plans if plan.name in jobs)

    def plan_of(self, host: str) -> ChaosJobPlan:
        return self._plans_of[host]

    async def look(self) -> None:
        """Takes the lines that processes have received."""
        for processes in self._processes:
            await processes.all_ready()

    def received(self) -> Mapping[ChaosPeer, Sequence[streams.DirectiveReceived]]:
        """The lines of the processes that have not ended."""
        return {peer: lines for each in self._processes for peer, lines in each.received.items()}

    async def end_processes(self, jobs: Collection[str]) -> None:
        """Ends the processes of these jobs, which are in clients of their own."""
        ended = [each for each in self._processes if each.jobs <= set(jobs)]
        self._processes = [each for each in self._processes if each not in ended]
        for processes in ended:
            await processes.end()

    def ended(self) -> list[str]:
        """The nodes whose agents have ended, which none has a reason to."""
        return [uplink.get_name() for uplink in self._uplinks if uplink.done()]

    async def _page(self, parameters: Mapping[str, str]) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self._tokens.viewer()}"}
        async with self._session.get(self._url + "/v1/status", headers=headers, params=parameters) as response:
            value: dict[str, Any] = await response.json()
        return value

    async def _start_agents(self) -> None:
        for plan in self.plans:
            for host in plan.hosts:
                token_file = self.one.directory.with_name(f"token-{host}")
                token_file.write_text(self._tokens.agent(host))
                self.nodes[host] = NoticedNode(host, token_file, plan.route)
        for batch in _batches(list(self.nodes.values()), _AGENTS_AT_ONCE):
            self._uplinks += [asyncio.create_task(node.uplink.run(), name=node.node) for node in batch]
            await until(partial(_all_welcomed, batch), "the agents are welcome")

    def _start_launchers(self) -> None:
        token_file = self.one.directory.with_name("token-launcher")
        token_file.write_text(self._tokens.launcher("launcher"))
        self.launchers = {plan.name: ChaosLauncher(plan, token_file) for plan in self.plans}
        for launcher in self.launchers.values():
            launcher.start()

    def _unsettled(self) -> object:
        nodes = self.nodes.values()
        return [
            (node.node, node.uplink.fault.reason) for node in nodes if not (node.uplink.welcomed and node.is_durable)
        ]


def _all_welcomed(nodes: Iterable[NoticedNode]) -> bool:
    return all(node.uplink.welcomed for node in nodes)


def _by_route(launchers: Iterable[ChaosLauncher]) -> Iterator[list[ChaosLauncher]]:
    """Launchers whose processes may be in one client: of one route, and either none or all of them can be stopped."""
    groups: dict[tuple[Address, bool], list[ChaosLauncher]] = {}
    for launcher in launchers:
        groups.setdefault((launcher.plan.route.http, launcher.plan.spare == 0), []).append(launcher)
    yield from groups.values()


def _batches(nodes: Sequence[NoticedNode], size: int) -> Iterator[Sequence[NoticedNode]]:
    for start in range(0, len(nodes), size):
        yield nodes[start : start + size]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosSize:
    """Of a fleet: `jobs` share `nodes` evenly, and each node has `each` processes.

    Two of the jobs cannot lose any host, the others a quarter of theirs.
    """

    nodes: int
    jobs: int
    each: int


def plans(size: ChaosSize, routes: Sequence[Route]) -> list[ChaosJobPlan]:
    count = size.nodes // size.jobs
    return [
        ChaosJobPlan(
            name=f"job-{number}",
            hosts=tuple(f"node-{number * count + host}" for host in range(count)),
            each=size.each,
            spare=0 if number < len(routes) else count // 4,
            route=routes[number % len(routes)],
            shared=number // len(routes) % 2 == 1,
        )
        for number in range(size.jobs)
    ]


@asynccontextmanager
async def fleet(
    root: Path, size: ChaosSize, command: Collection[str] = ("supervisor", "serve")
) -> AsyncIterator[ChaosFleet]:
    """A supervisor and its wires; the fleet is to be started."""
    directory, authority = root / "data", SimulatedAuthority(root / "tls")
    directory.mkdir(mode=0o700)
    settings = {**SETTINGS, **tls_settings(authority)}
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(life(directory, tuple(command), **settings))
        endpoints = json.loads((directory / ENDPOINTS_FILE).read_bytes())
        grpc, http = parse(endpoints["grpc"]), parse(endpoints["http"].partition("://")[2])
        grpc_bytes = await stack.enter_async_context(ByteWire.to(grpc))
        http_bytes = await stack.enter_async_context(ByteWire.to(http))
        grpc_messages = await stack.enter_async_context(AgentWire.to(grpc, authority.ca_file))
        http_messages = await stack.enter_async_context(CallWire.to(http, authority.ca_file))
        connector = aiohttp.TCPConnector(ssl=trust(str(authority.ca_file)), force_close=True)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        routes = [
            Route(grpc_bytes.address, http_bytes.address, authority.ca_file),
            Route(grpc_messages.address, http_messages.address, None),
        ]
        wires: list[ChaosWire] = [grpc_bytes, http_bytes, grpc_messages, http_messages]
        everybody = ChaosFleet(one, wires, plans(size, routes), session)
        stack.push_async_callback(everybody.close)
        yield everybody
