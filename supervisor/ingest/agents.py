"""The agent stream: hello, reports, heartbeats; every notice acknowledged when it is durable."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from reclaim.v1 import reclaim_pb2 as wire
from reclaim.v1.reclaim_pb2_grpc import ReclaimServiceServicer

from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from supervisor.decide.notices import accept, replaced
from supervisor.decide.policy import Policy
from supervisor.domain.ids import Host
from supervisor.domain.notice import ReclaimNotice, Report
from supervisor.failpoints import At
from supervisor.identity.tokens import Agent, BadTokenError, Principal
from supervisor.ingest.agent_messages import MalformedError, hello_view, report, source_state
from supervisor.presence import Agents, AgentView
from supervisor.store.interface import Store, StoreUnavailableError

_SILENT_HEARTBEATS = 3

_Context = grpc.aio.ServicerContext[wire.AgentMessage, wire.SupervisorMessage]

_log = structlog.get_logger()


class _RefusedError(Exception):
    """The stream ends with this status; what the agent may do next is in the proto."""

    def __init__(self, code: grpc.StatusCode, why: str) -> None:
        super().__init__(why)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentPorts:
    """What the service works with; `bearer` says who sent an Authorization header."""

    store: Store
    agents: Agents
    bearer: Callable[[str | None], Principal]
    policy: Policy
    clock: Clock
    heartbeat_seconds: float


class ReclaimService(ReclaimServiceServicer):
    """Serves agents. `finish` says goodbye on every stream."""

    def __init__(self, ports: AgentPorts) -> None:
        self._ports = ports
        self._stop = asyncio.Event()

    def finish(self) -> None:
        """Ends every stream with a goodbye, and new ones as they come."""
        self._stop.set()

    # grpc.aio also takes a coroutine that writes through its context; the stubs know the generator only.
    async def Connect(  # type: ignore[override]  # noqa: N802 - the name is the contract's
        self, request_iterator: AsyncIterator[wire.AgentMessage], context: _Context
    ) -> None:
        """One agent's stream."""
        try:
            node = self._authenticate(context)
            await _Stream(self._ports, node, request_iterator, context, self._stop).serve()
        except _RefusedError as refusal:
            _log.warning("agent.refused", code=refusal.code.name, why=str(refusal))
            await context.abort(refusal.code, str(refusal))

    def _authenticate(self, context: _Context) -> Host:
        metadata = dict(context.invocation_metadata() or ())
        header = metadata.get("authorization")
        try:
            principal = self._ports.bearer(header if isinstance(header, str) else None)
        except BadTokenError as error:
            raise _RefusedError(grpc.StatusCode.UNAUTHENTICATED, str(error)) from error
        if not isinstance(principal, Agent):
            raise _RefusedError(grpc.StatusCode.PERMISSION_DENIED, "the token is not an agent's")
        return principal.node


class _Stream:
    """One connected agent."""

    def __init__(
        self,
        ports: AgentPorts,
        node: Host,
        messages: AsyncIterator[wire.AgentMessage],
        context: _Context,
        stop: asyncio.Event,
    ) -> None:
        self._ports = ports
        self._node = node
        self._messages = aiter(messages)
        self._context = context
        self._stop = stop
        self._writing = asyncio.Lock()

    async def serve(self) -> None:
        """Until either side ends it."""
        view, reports = await self._hello()
        if self._ports.agents.connect(view, self) is not None:
            await self._superseded()
            return
        failpoint(At.AGENT_CONNECTED)
        _log.info("agent.connected", node=self._node, session=view.session)
        try:
            await self._replace_machine(view.uid)
            welcome = wire.Welcome(heartbeat_seconds=self._ports.heartbeat_seconds)
            await self._write(wire.SupervisorMessage(welcome=welcome))
            for each in reports:
                await self._put(each)
            await self._converse(view)
        except MalformedError as error:
            raise _RefusedError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        except StoreUnavailableError as error:
            raise _RefusedError(grpc.StatusCode.UNAVAILABLE, str(error)) from error
        finally:
            self._ports.agents.disconnect(self._node, self)
            _log.info("agent.disconnected", node=self._node, session=view.session)

    async def _hello(self) -> tuple[AgentView, list[Report]]:
        first = await self._next()
        if first is None or first.WhichOneof("message") != "hello":
            raise _RefusedError(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be a hello")
        hello = first.hello
        if hello.node != self._node:
            raise _RefusedError(grpc.StatusCode.PERMISSION_DENIED, f"the token speaks for {self._node} only")
        try:
            view = hello_view(hello)
            return view, [report(each, view) for each in hello.notices]
        except MalformedError as error:
            raise _RefusedError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error

    async def _replace_machine(self, uid: str) -> None:
        """Notices on an earlier machine of this name are over: another one speaks now."""
        earlier = [
            notice.id
            for notice in self._ports.store.snapshot().notices.values()
            if notice.subject.name == self._node and notice.subject.uid != uid
        ]

        def change(known: ReclaimNotice | None) -> ReclaimNotice | None:
            return None if known is None else replaced(known, uid, self._ports.clock.now())

        for key in earlier:
            await self._ports.store.put_notice(key, change)
            failpoint(At.MACHINE_REPLACED)

    async def _converse(self, view: AgentView) -> None:
        """Reads until the agent ends the stream or falls silent, or this side stops; heartbeats meanwhile."""
        tasks: set[asyncio.Task[Any]] = {
            asyncio.create_task(self._read(view), name="agent.read"),
            asyncio.create_task(self._beat(), name="agent.beat"),
            asyncio.create_task(self._stop.wait(), name="agent.stop"),
        }
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if self._ports.agents.session(self._node) > view.session:
                await self._superseded()
            elif self._stop.is_set():
                goodbye = wire.Goodbye(reason="the supervisor is stopping")
                await self._write(wire.SupervisorMessage(goodbye=goodbye))
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._ports.heartbeat_seconds)
            await self._write(wire.SupervisorMessage(heartbeat=wire.Heartbeat()))

    def _speaks(self) -> bool:
        return self._ports.agents.speaks(self._node, self)

    async def _superseded(self) -> None:
        known = wire.Superseded(session=self._ports.agents.session(self._node))
        await self._write(wire.SupervisorMessage(superseded=known))

    async def _read(self, view: AgentView) -> None:
        """Until the agent has said goodbye, is silent, or another stream speaks for the node."""
        while (message := await self._next()) is not None and self._speaks():
            match message.WhichOneof("message"):
                case "notice":
                    await self._put(report(message.notice, view))
                case "source":
                    name, state = source_state(message.source)
                    self._ports.agents.source(self._node, self, name, state)
                case "goodbye":
                    return
                case "heartbeat" | None:
                    pass  # Being heard is all that counts; an unknown kind comes from a newer agent.
                case "hello":
                    raise _RefusedError(grpc.StatusCode.INVALID_ARGUMENT, "one hello is enough")

    async def _next(self) -> wire.AgentMessage | None:
        """The next message; None when the agent ended the stream or fell silent."""
        try:
            async with asyncio.timeout(_SILENT_HEARTBEATS * self._ports.heartbeat_seconds):
                return await anext(self._messages, None)
        except TimeoutError:
            _log.warning("agent.silent", node=self._node)
            return None

    async def _write(self, message: wire.SupervisorMessage) -> None:
        # gRPC takes one write at a time: a heartbeat beside an acknowledgement would break the stream.
        async with self._writing:
            await self._context.write(message)

    async def _put(self, said: Report) -> None:
        """Weighs a report, and acknowledges it once what came of it is durable."""
        failpoint(At.NOTICE_RECEIVED)
        received = self._ports.clock.now()

        def change(known: ReclaimNotice | None) -> ReclaimNotice | None:
            if known is not None and known.subject.name != self._node:
                # The token names the node only: without this an agent could speak of any machine whose uid it knows.
                raise MalformedError(f"{said.subject.uid} is the machine of {known.subject.name}")
            return accept(known, said, received, self._ports.policy)

        notice = await self._ports.store.put_notice(said.id, change)
        failpoint(At.NOTICE_STORED)
        entry = wire.Acknowledgement.Entry(notice_id=said.id, revision=said.revision)
        await self._write(wire.SupervisorMessage(acknowledgement=wire.Acknowledgement(entries=[entry])))
        failpoint(At.NOTICE_ACKNOWLEDGED)
        if notice is not None and (notice.session, notice.revision) == (said.session, said.revision):
            _log.info(
                "notice.received",
                notice=notice.id,
                episode=notice.episode,
                subject=notice.subject.name,
                state=notice.state,
                seconds_left=said.seconds_left,
            )
