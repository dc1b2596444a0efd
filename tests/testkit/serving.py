"""A whole supervisor on loopback, and the peers that talk to it: agents, launchers, training processes."""

import asyncio
import contextlib
import io
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import aiohttp
import grpc
from reclaim.v1 import reclaim_pb2 as wire
from reclaim.v1.reclaim_pb2_grpc import ReclaimServiceStub

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from simulator.certificates import SimulatedAuthority
from supervisor.domain.ids import JobName
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.fanout.processes import Processes
from supervisor.identity.tokens import Tokens
from supervisor.observability.hooks import MetricsHooks
from supervisor.observability.traces.spans import SpanExport
from supervisor.refusals import Refusals
from supervisor.serving.servers import ENDPOINTS_FILE
from supervisor.settings import Settings
from supervisor.store.sqlite import SqliteStore
from supervisor.wiring.app import Foundation, SupervisorService
from supervisor.wiring.startup import STORE_FILE, load_certificate, load_notifications
from tests.testkit.connections import TlsConnector
from tests.testkit.waiting import PATIENCE, until

HEARTBEAT = 0.5
"""Of a supervisor, in seconds: three of them without a word are silence, which a busy machine must not make."""
_HEARTBEATS_OF_AGENTS = 0.4
"""An agent sends a heartbeat after this part of the interval that the supervisor asks for."""

TLS_RELOAD = 0.05

FAST: Mapping[str, Any] = {
    "grpc_address": "127.0.0.1:0",
    "http_address": "127.0.0.1:0",
    "heartbeat_seconds": HEARTBEAT,
    "launcher_live_seconds": 0.3,
    "window_seconds": 0.1,
    "margin_seconds": 0.5,
    "leave_margin_seconds": 0.5,
    "rank_zero_head_start_seconds": 0.1,
    "lost_grace_seconds": 0.5,
    "rank_zero_grace_seconds": 0.5,
    "resume_delay_seconds": 0.1,
    "resume_backoff_seconds": 0.1,
    "gone_grace_seconds": 0.1,
    "weigh_joins": False,
}


def tls_settings(authority: SimulatedAuthority) -> dict[str, Any]:
    return {
        "tls_cert_file": authority.cert_file,
        "tls_key_file": authority.key_file,
        "tls_reload_seconds": TLS_RELOAD,
    }


def durable(job: dict[str, Any]) -> dict[str, Any]:
    """The stored fields of a job, without those that pass or that only the streams know."""
    return {
        name: value
        for name, value in job.items()
        if name not in ("age_seconds", "since_seconds", "seconds_left", "overdue_seconds", "host_states")
    }


class Lines:
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    async def any(self) -> dict[str, Any]:
        """The next line, of whatever type; `{}` at the end of the stream."""
        async with asyncio.timeout(PATIENCE):
            data = await self._response.content.readline()
        value: dict[str, Any] = json.loads(data) if data else {}
        return value

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(PATIENCE):
            while (line := await self.any()).get("type") == "heartbeat":
                pass
        return line

    async def matching(self, **expected: Any) -> dict[str, Any]:
        """The next line with these fields; lines before it are passed over."""
        # Heartbeats must not keep this waiting for what only a deadline far away would bring.
        try:
            async with asyncio.timeout(PATIENCE):
                line = await self.next()
                while not expected.items() <= line.items():
                    assert line, f"the stream ended before a line with {expected}"
                    line = await self.next()
        except TimeoutError:
            raise AssertionError(f"not within {PATIENCE:g} s: a line with {expected}") from None
        return line

    async def before_heartbeat(self) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = []
        while (line := await self.any()).get("type") != "heartbeat":
            assert line, "the stream ended"
            lines.append(line)
        return lines

    def discard_received(self) -> None:
        """Forgets the lines that have arrived: the next heartbeat is one that is sent from now on."""
        self._response.content.read_nowait()

    def close(self) -> None:
        self._response.close()


@dataclass(frozen=True, slots=True)
class PeerRefusal:
    """A refusal, or its absence: status 200 and no code."""

    status: int
    code: str | None


class AgentPeer:
    def __init__(self, call: Any) -> None:
        self.call = call
        self._writing = asyncio.Lock()

    async def say(self, **message: Any) -> None:
        async with self._writing:
            await self.call.write(wire.AgentMessage(**message))

    async def live(self, seconds: float = HEARTBEAT * _HEARTBEATS_OF_AGENTS) -> None:
        """Sends a heartbeat every so many seconds."""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await asyncio.sleep(seconds)
                await self.say(heartbeat=wire.Heartbeat())

    async def notices(self, node: str, **changes: Any) -> None:
        """Reports a notice on its node and waits until it is durable."""
        report = noticed(node, **changes)
        await self.say(notice=report)
        await self.acknowledged(report.revision)

    async def read(self, kind: str) -> Any:
        """The next message of that kind; others before it are passed over."""
        async with asyncio.timeout(PATIENCE):
            while isinstance(message := await self.call.read(), wire.SupervisorMessage):
                if message.WhichOneof("message") == kind:
                    return getattr(message, kind)
        raise AssertionError(f"the stream ended before a {kind}")

    async def acknowledged(self, revision: int) -> str:
        while True:
            for entry in (await self.read("acknowledgement")).entries:
                if entry.revision == revision:
                    return str(entry.notice_id)

    async def ended(self) -> grpc.StatusCode:
        """The status with which the stream ended; it comes after all that is still to be read."""
        async with asyncio.timeout(PATIENCE):
            with contextlib.suppress(grpc.aio.AioRpcError):
                while isinstance(await self.call.read(), wire.SupervisorMessage):
                    pass
            code: grpc.StatusCode = await self.call.code()
        return code


@dataclass(slots=True)
class ServedPeers:
    """Makes peers of one supervisor, and closes all their connections at the end.

    Attributes:
        agents_of_connection: After how many agents the next ones get another connection. The supervisor serves a
            hundred of one; a later one waits.
    """

    tokens: Tokens
    http: str
    grpc: str
    _stack: AsyncExitStack
    session: aiohttp.ClientSession
    _ca: bytes | None
    agents_of_connection: int = 90
    _stub: Any = None
    _agents: int = 0

    @classmethod
    @asynccontextmanager
    async def of(cls, tokens: Tokens, endpoints: Mapping[str, str], ca: bytes | None = None) -> AsyncIterator[Self]:
        """Peers of the supervisor that serves there, with TLS if they are given whom to trust (PEM)."""
        async with AsyncExitStack() as stack:
            trusted = None if ca is None else ssl.create_default_context(cadata=ca.decode())
            connector = TlsConnector(trusted)
            # Streams last as long as their peers; who waits for an answer or a line has a limit of its own.
            endless = aiohttp.ClientTimeout(total=None)
            session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, timeout=endless))
            yield cls(tokens, endpoints["http"], endpoints["grpc"], stack, session, ca)

    def stranger(self, token: str | None) -> AgentPeer:
        if self._agents % self.agents_of_connection == 0:
            channel = _channel(self.grpc, self._ca)
            self._stack.push_async_callback(channel.close, grace=None)
            self._stub = ReclaimServiceStub(channel)
        self._agents += 1
        call = self._stub.Connect(metadata=(("authorization", f"Bearer {token}"),) if token else ())
        self._stack.callback(call.cancel)
        return AgentPeer(call)

    async def agent(self, node: str, *, silent: bool = False, **changes: Any) -> AgentPeer:
        """A connected agent of a node; `changes` are fields of the hello."""
        agent = self.stranger(self.tokens.agent(node))
        await agent.say(hello=hello(node, **changes))
        welcome = await agent.read("welcome")
        if not silent:
            every = welcome.heartbeat_seconds * _HEARTBEATS_OF_AGENTS
            self._stack.callback(asyncio.create_task(agent.live(every)).cancel)
        return agent

    async def agents(self, nodes: list[str]) -> dict[str, AgentPeer]:
        return {node: await self.agent(node) for node in nodes}

    async def post(self, path: str, token: str | None, body: Any) -> PeerRefusal:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        # A stream that is not refused after all would be read for ever.
        async with (
            asyncio.timeout(PATIENCE),
            self.session.post(self.http + path, headers=headers, data=data) as response,
        ):
            answer = json.loads(await response.read())
            return PeerRefusal(response.status, answer.get("error"))

    async def refused_or_open(self, path: str, token: str, body: Any) -> PeerRefusal:
        """As `post`, for a stream that may be accepted: it is closed at once."""
        headers = {"Authorization": f"Bearer {token}"}
        async with self.session.post(self.http + path, headers=headers, json=body) as response:
            return PeerRefusal(response.status, None if response.status == 200 else (await response.json())["error"])

    async def lines(self, path: str, token: str, body: Any) -> Lines:
        headers = {"Authorization": f"Bearer {token}"}
        response = await self.session.post(self.http + path, headers=headers, data=json.dumps(body).encode())
        self._stack.callback(response.close)
        assert response.status == 200, await response.text()
        return Lines(response)

    async def opened(self, path: str, token: str) -> aiohttp.ClientResponse:
        """The answer to a GET, to be read line by line."""
        headers = {"Authorization": f"Bearer {token}"}
        patience = aiohttp.ClientTimeout(PATIENCE)
        response = await self.session.get(self.http + path, headers=headers, read_bufsize=2**21, timeout=patience)
        self._stack.callback(response.close)
        return response

    async def launcher(self, job: str, hosts: list[str], **changes: Any) -> "LauncherPeer":
        """A launcher that has registered a job; `changes` are fields of the hello."""
        sent = launcher_hello(job, hosts, **changes)
        token = self.tokens.launcher("launcher")
        lines = await self.lines("/v1/launchers/stream", token, sent)
        return LauncherPeer(self, lines, token, {"job": job, "instance": sent["instance"], **sent["report"]})

    async def running(self, job: str, hosts: list[str], **changes: Any) -> tuple["LauncherPeer", dict[str, Any]]:
        """A launcher whose first run goes on, and the order that it is about."""
        launcher = await self.launcher(job, hosts, **changes)
        order = await launcher.lines.matching(type="order", order="run")
        await launcher.reports(run=order["run"], running=True, applied=order["generation"])
        return launcher, order

    async def process(self, token: str, host: str, rank: int | None, **says: Any) -> "ProcessPeer":
        """A connected process; `says` are further fields of its hello and reports."""
        peer = ProcessPeer(self, token, {"process": f"process-on-{host}", "host": host, "rank": rank, **says})
        await peer.connect()
        return peer

    async def member(self, token: str, host: str, **says: Any) -> "MemberPeer":
        """A connected elastic agent that waits for a round; `says` are fields of its state."""
        peer = MemberPeer(self, token, host, {"processes": 2, "address": f"{host}:0", "waits": True, **says})
        await peer.connect()
        peer.alive = asyncio.create_task(peer.live())
        self._stack.callback(peer.alive.cancel)
        return peer


@dataclass(slots=True)
class LauncherPeer:
    peers: ServedPeers
    lines: Lines
    token: str
    report: dict[str, Any]

    async def says(self, **changes: Any) -> PeerRefusal:
        self.report = {**self.report, "revision": self.report["revision"] + 1, **changes}
        return await self.peers.post("/v1/launchers/report", self.token, self.report)

    async def reports(self, **changes: Any) -> None:
        assert await self.says(**changes) == PeerRefusal(200, None)


@dataclass(slots=True)
class ProcessPeer:
    peers: ServedPeers
    token: str
    who: dict[str, Any]
    _lines: list[Lines] = field(default_factory=list)

    @property
    def lines(self) -> Lines:
        return self._lines[-1]

    async def connect(self) -> Lines:
        hello = {**self.who, "pid": 1, "step": None, "sdk": "0"}
        self._lines.append(await self.peers.lines("/v1/processes/stream", self.token, hello))
        return self.lines

    async def reports(self, kind: str, directive: Mapping[str, Any], **changes: Any) -> PeerRefusal:
        answer = {"kind": kind, "step": 7, "run": directive["run"], "generation": directive["generation"]}
        return await self.peers.post("/v1/processes/report", self.token, {**self.who, **answer, **changes})


@dataclass(slots=True)
class MemberPeer:
    """An elastic agent on the wire."""

    peers: ServedPeers
    token: str
    host: str
    state: dict[str, Any]
    member: str = ""
    revision: int = 0
    alive: asyncio.Task[None] | None = None
    _lines: list[Lines] = field(default_factory=list)
    _saying: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def lines(self) -> Lines:
        return self._lines[-1]

    @property
    def _who(self) -> dict[str, Any]:
        return {"member": self.member or f"member-on-{self.host}", "host": self.host, "run": None}

    async def connect(self) -> Lines:
        hello = {**self._who, "state": self.state}
        self._lines.append(await self.peers.lines("/v1/rendezvous/stream", self.token, hello))
        return self.lines

    def end(self) -> None:
        """Ends it without a word: its connection breaks."""
        self.freeze()
        self.lines.close()

    def freeze(self) -> None:
        """Lets it report nothing more; its connection stays."""
        if self.alive is not None:
            self.alive.cancel()

    async def says(self, **changes: Any) -> PeerRefusal:
        """Reports, one after the other: of two reports under way the earlier one could come last, and be refused."""
        async with self._saying:
            self.state = {**self.state, **changes}
            self.revision += 1
            report = {**self._who, "state": self.state, "revision": self.revision}
            return await self.peers.post("/v1/rendezvous/report", self.token, report)

    async def live(self) -> None:
        """Reports each half second that nothing has changed."""
        while True:
            await asyncio.sleep(0.5)
            await self.says()

    async def enters(self, number: int, **changes: Any) -> dict[str, Any]:
        """Waits for a round and enters it; its first member opens a store."""
        line = await self.round(number)
        known = {"number": number, "hosts": [each["host"] for each in line["round"]["members"]], "in_process": False}
        is_first = line["round"]["members"][0]["host"] == self.host
        store = {"round": number, "address": "127.0.0.1", "port": 4000 + number} if is_first else None
        entered = {"round": number, "waits": False, "failed": False, "known": known, "store": store}
        assert await self.says(**{**entered, **changes}) == PeerRefusal(200, None)
        return line

    async def round(self, number: int) -> dict[str, Any]:
        """The line with the round of that number, of which this member is part."""
        while True:
            line = await self.lines.matching(type="rendezvous", wanted=number)
            if line["round"] is not None and line["round"]["number"] == number:
                return line


def _channel(address: str, ca: bytes | None) -> grpc.aio.Channel:
    # Of its own: a shared connection would outlive the exchange of a certificate.
    options = (("grpc.use_local_subchannel_pool", 1),)
    if ca is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca), options=options)


def hello(node: str, *, state: int = wire.SOURCE_STATE_CLEAR, **changes: Any) -> wire.Hello:
    fields = {"node": node, "node_uid": f"uid-{node}", "session": 10, "agent_version": "0", **changes}
    sources = [wire.SourceReport(source="metadata", state=state)]  # type: ignore[arg-type]  # An enum's number.
    return wire.Hello(sources=sources, **fields)


def noticed(  # noqa: PLR0913 - each has a default
    node: str,
    revision: int = 1,
    *,
    withdrawn: bool = False,
    uid: str | None = None,
    left: float | None = 60.0,
    notice_class: wire.NoticeClass.ValueType = wire.NOTICE_CLASS_UNSPECIFIED,
    cancellable: bool = False,
) -> wire.NoticeReport:
    return wire.NoticeReport(
        source="metadata",
        subject=wire.Subject(kind=wire.SUBJECT_KIND_NODE, name=node, uid=uid or f"uid-{node}"),
        revision=revision,
        announcement=wire.ANNOUNCEMENT_WITHDRAWN if withdrawn else wire.ANNOUNCEMENT_ACTIVE,
        seconds_left=left,
        notice_class=notice_class,
        cancellable=cancellable,
    )


def launcher_hello(job: str, hosts: list[str], **changes: Any) -> dict[str, Any]:
    """A launcher's hello for a job that runs on all its hosts and on no fewer."""
    count = max(1, len(hosts))
    report = {"revision": 1, "hosts": hosts, "run": 0, "running": False, "exit_code": None, "restarts": 0, "applied": 0}
    return {
        "job": job,
        "instance": "instance-1",
        "framework": "horovod",
        "min_workers": count,
        "max_workers": count,
        "requested_workers": count,
        "max_wait_seconds": 0,
        "launcher_host": None,
        "report": {**report, "result": None},
        **changes,
    }


@dataclass(frozen=True, slots=True)
class Served:
    store: SqliteStore
    peers: ServedPeers
    processes: Processes
    supervisor: SupervisorService
    _stop: asyncio.Event
    _task: asyncio.Task[None]
    _since: float = field(default_factory=time.monotonic)

    def age(self) -> float:
        return time.monotonic() - self._since

    async def stop(self) -> None:
        """Stops it in the orderly way, while its peers are still there."""
        self._stop.set()
        await self._task

    def job(self, name: str) -> SupervisedJob:
        return self.store.snapshot().jobs[JobName(name)]

    def notices(self) -> dict[str, ReclaimNotice]:
        return {notice.subject.name: notice for notice in self.store.snapshot().notices.values()}

    async def status(self) -> dict[str, Any]:
        value = await self._page({})
        while value["next"] is not None:
            page = await self._page({"after": value["next"]})
            for part in ("jobs", "notices", "unconfirmed", "agents"):
                value[part] += page[part]
            value["next"] = page["next"]
        return value

    async def _page(self, parameters: dict[str, str]) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.peers.tokens.viewer()}", "Connection": "close"}
        url = self.peers.http + "/v1/status"
        async with self.peers.session.get(url, headers=headers, params=parameters) as response:
            value: dict[str, Any] = await response.json()
        return value

    async def agent_is(self, node: str, *, connected: bool) -> dict[str, Any]:
        """Waits until the node's agent is connected or not; returns what is known of it."""

        async def so() -> dict[str, Any] | None:
            for agent in (await self.status())["agents"]:
                if agent["node"] == node and agent["connected"] is connected:
                    found: dict[str, Any] = agent
                    return found
            return None

        return await until(so, f"the agent of {node} is {'' if connected else 'not '}connected") or {}


@asynccontextmanager
async def serving(  # noqa: PLR0913 - each has a default
    directory: Path,
    ca: bytes | None = None,
    *,
    may_act: Callable[[], bool] = lambda: True,
    kept_in: type[SqliteStore] = SqliteStore,
    hooks: MetricsHooks = MetricsHooks(),  # noqa: B008 - it has no state
    refusals: Refusals | None = None,
    traces: SpanExport | None = None,
    **changes: Any,
) -> AsyncIterator[Served]:
    """Runs a supervisor on that data directory, with short times unless `changes` say otherwise.

    Its peers trust `ca` (PEM).
    """
    settings = Settings(**{**FAST, "data_dir": directory, **changes})
    tokens = Tokens.load(directory)
    endpoints = directory / ENDPOINTS_FILE
    endpoints.unlink(missing_ok=True)
    store = await kept_in.open(directory / STORE_FILE)
    stop = asyncio.Event()
    clock = Clock()
    supervisor = SupervisorService(
        Foundation(
            settings=settings,
            store=store,
            tokens=tokens,
            clock=clock,
            bulkhead=Bulkhead(clock),
            certificate=load_certificate(settings, Clock()),
            may_act=may_act,
            refusals=refusals or Refusals(),
            hooks=hooks,
            notifications=load_notifications(settings),
            traces=traces,
        )
    )
    task = asyncio.create_task(supervisor.serve(stop))
    try:
        await until(lambda: endpoints.exists() or task.done())
        async with ServedPeers.of(tokens, json.loads(endpoints.read_bytes()), ca) as peers:
            yield Served(store, peers, supervisor.processes, supervisor, stop, task)
    finally:
        stop.set()
        await task
        await store.close()


async def full_disk(store: SqliteStore, *, full: bool) -> None:
    """Let every write of the store fail, or stop that."""
    # Its own connection, in its own thread: nothing else can make a real file refuse to be written for a while.
    await store._in_thread(store._connection.execute, f"PRAGMA query_only = {int(full)}")
