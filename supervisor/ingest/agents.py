"""The gRPC service for agents: hello, reports and heartbeats. Every notice is acknowledged once it is stored."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from reclaim.v1 import reclaim_pb2 as wire

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from supervisor.decide.notices import replaced
from supervisor.decide.policy import Policy
from supervisor.domain.ids import Host, Source
from supervisor.domain.notice import NOT_OF_AGENTS, ReclaimNotice, Report, SubjectKind
from supervisor.failpoints import At
from supervisor.identity.tokens import Agent, AuthenticationUnavailableError, BadTokenError, ForeignPodError, Principal
from supervisor.ingest.agent_messages import Received, about_pods, decode, hello_view, machine, report, source_state
from supervisor.ingest.agent_registry import AgentRegistry, AgentState
from supervisor.ingest.agent_reports import ReportDependencies, ReportHandler, ignore_refusal
from supervisor.ingest.errors import ForeignTokenError, MalformedError, SlowReaderError, TooManyError, code_of
from supervisor.ingest.liveness import Liveness, Verdict
from supervisor.ingest.pod_reports import PodReports
from supervisor.ingest.unconfirmed import UnconfirmedNotices
from supervisor.refusals import Code, Refusals, Wire, readable
from supervisor.store.interface import Store

_CONNECT = "/reclaim.v1.ReclaimService/Connect"
_SILENT_HEARTBEATS = 3
_PINGED_SECONDS = 70.0
"""A connection that is lost, and not closed, answered a ping at most this long ago: every 60 s, within 10 s."""
_HEARTBEATS_AT_ONCE = 100
_MAX_INTERVAL_SECONDS = 600.0
_HELLO_SECONDS = 1.0
"""The time limit for the hello of an agent that will be refused."""

_MAX_SOURCES = 16
"""Sources on one stream."""
_MAX_NOTICES = 256
"""Stored notices of one node, including those that ended in the last 24 h: enough for a new machine every 6 minutes."""

_MAX_NAMED = 10
"""Nodes in one log line."""

_STATUS = {
    Code.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    Code.OVERSIZED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Code.TOO_MANY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Code.BAD_TOKEN: grpc.StatusCode.UNAUTHENTICATED,
    Code.FOREIGN_TOKEN: grpc.StatusCode.PERMISSION_DENIED,
    Code.NOT_SERVING: grpc.StatusCode.UNAVAILABLE,
    Code.INTERNAL: grpc.StatusCode.INTERNAL,
}
"""The proto documents how agents react to each status."""

_Context = grpc.aio.ServicerContext[wire.AgentMessage, wire.SupervisorMessage]

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDependencies:
    """What the agent service works with. `on_refused` is called with the source of each refused report."""

    store: Store
    agents: AgentRegistry
    unconfirmed: UnconfirmedNotices
    pods: PodReports
    refusals: Refusals
    authenticate: Callable[[str | None], Awaitable[Principal]]
    policy: Policy
    clock: Clock
    bulkhead: Bulkhead
    heartbeat_seconds: float
    on_refused: Callable[[Source], None] = ignore_refusal

    @property
    def reports(self) -> ReportDependencies:
        """The dependencies of a stream's reports."""
        return ReportDependencies(
            store=self.store,
            unconfirmed=self.unconfirmed,
            pods=self.pods,
            refusals=self.refusals,
            policy=self.policy,
            clock=self.clock,
            bulkhead=self.bulkhead,
            on_refused=self.on_refused,
        )


class ReclaimService(grpc.GenericRpcHandler):  # type: ignore[type-arg] # The stubs' parameters do not exist.
    """Serves agents. `finish` ends every stream with a goodbye."""

    def __init__(self, deps: AgentDependencies) -> None:
        self._deps = deps
        self._streams: set[_Stream] = set()
        self._is_stopping = False
        self._connect = grpc.stream_stream_rpc_method_handler(
            self.connect, request_deserializer=decode, response_serializer=wire.SupervisorMessage.SerializeToString
        )

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Returns the handler of the only method; gRPC answers UNIMPLEMENTED to all others."""
        if handler_call_details.method == _CONNECT:
            return self._connect
        self._deps.refusals.add(Wire.GRPC, Code.UNKNOWN_CALL, handler_call_details.method)
        return None

    def finish(self) -> None:
        """Ends all streams with a goodbye, including later ones."""
        self._is_stopping = True
        for stream in self._streams:
            stream.finish()

    async def heartbeat(self, _seconds: float) -> None:
        """Gives each stream its turn, with pauses for notices."""
        for turn, stream in enumerate(list(self._streams), 1):
            stream.heartbeat()
            if turn % _HEARTBEATS_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def connect(self, messages: AsyncIterator[Received], context: _Context) -> None:
        """Serves one agent's stream."""
        try:
            node = await self._authenticate(messages, context)
            await self._serve(_Stream(self._deps, node, messages, context))
        except grpc.aio.InternalError:  # The agent disconnected during a write; gRPC ignores this error.
            raise
        except SlowReaderError as error:
            self._deps.refusals.add(Wire.GRPC, Code.SLOW_READER, str(error))
            # A status would wait behind the unread messages, as gRPC cannot reset one stream.
            raise asyncio.CancelledError from error
        except Exception as error:  # noqa: BLE001 - an exception that is not a refusal is a bug, and counted as one
            code = code_of(error) or Code.INTERNAL
            self._deps.refusals.add(Wire.GRPC, code, str(error), None if code_of(error) else error)
            await context.abort(_STATUS[code], f"{code}: {readable(str(error))}")

    async def _serve(self, stream: "_Stream") -> None:
        self._streams.add(stream)
        if self._is_stopping:
            stream.finish()
        try:
            await stream.serve()
        finally:
            self._streams.discard(stream)

    async def _authenticate(self, messages: AsyncIterator[Received], context: _Context) -> Host:
        try:
            return await self._speaker(context)
        except (BadTokenError, ForeignTokenError, ForeignPodError, AuthenticationUnavailableError):
            # A client that is refused while it still writes its hello would report INTERNAL without the reason.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HELLO_SECONDS):
                    await anext(messages, None)
            raise

    async def _speaker(self, context: _Context) -> Host:
        metadata = dict(context.invocation_metadata() or ())
        header = metadata.get("authorization")
        principal = await self._deps.authenticate(header if isinstance(header, str) else None)
        if not isinstance(principal, Agent):
            raise ForeignTokenError("the token is not an agent's")
        return principal.node


class _Stream:
    """One connected agent."""

    def __init__(
        self,
        deps: AgentDependencies,
        node: Host,
        messages: AsyncIterator[Received],
        context: _Context,
    ) -> None:
        self._deps = deps
        self._node = node
        self._messages = aiter(messages)
        self._context = context
        self._writing = asyncio.Lock()
        self._sources: set[Source] = set()
        self._patience = _SILENT_HEARTBEATS * deps.heartbeat_seconds
        self._interval = 1
        self._liveness: Liveness | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._is_stopping = False
        self._is_reading = False
        self._is_silent = False
        self._heard_at = deps.clock.now()
        self._beats: set[asyncio.Task[None]] = set()
        self._reports = ReportHandler(deps.reports, node, self._acknowledge)

    def finish(self) -> None:
        """Ends the stream with a goodbye."""
        self._is_stopping = True
        self._finish(None)

    def heartbeat(self) -> None:
        """Takes a turn: sends a heartbeat if one is due, and ends the stream of an agent that is not there any more."""
        if self._liveness is None:
            return
        match self._turn(self._liveness):
            case Verdict.HEARTBEAT_DUE:
                beat = asyncio.create_task(self._write(wire.SupervisorMessage(heartbeat=wire.Heartbeat())))
                self._beats.add(beat)
                beat.add_done_callback(self._beat_ended)
            case Verdict.SILENT:
                _log.warning("agent.silent", node=self._node)
                self._is_silent = True
                self._finish(None)
            case Verdict.NOT_READING:
                self._finish(self._slow_reader())

    def _turn(self, liveness: Liveness) -> Verdict:
        return liveness.turn(
            is_writing=self._writing.locked(), is_reading=self._is_reading, is_awaited=self._reports.has_unstored
        )

    def _beat_ended(self, beat: asyncio.Task[None]) -> None:
        self._beats.discard(beat)
        if not beat.cancelled() and (error := beat.exception()) is not None:
            self._finish(error)

    def _finish(self, error: BaseException | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    async def serve(self) -> None:
        """Serves the stream until either side ends it."""
        view, reports = await self._hello()
        known = self._deps.agents.connect(view, self)
        if known is not None:
            later = f"session {known.session}, stream {known.stream} of {self._node} is known"
            self._deps.refusals.add(Wire.GRPC, Code.OLDER_SESSION, later)
            if known.session > view.session:
                await self._superseded()
            return
        failpoint(At.AGENT_CONNECTED)
        _log.info("agent.connected", node=self._node, session=view.session)
        self._warn_of_shared_uid(view.uid)
        try:
            await self._replace_machine(view.uid)
            await self._run(view, reports)
        finally:
            self._deps.agents.disconnect(self._node, self, self._last_sign_of_life())
            _log.info("agent.disconnected", node=self._node, session=view.session)

    def _last_sign_of_life(self) -> float:
        """The last message, or the last ping that was answered. A program that hangs also answers pings."""
        if self._is_silent:
            return self._heard_at
        return max(self._heard_at, self._deps.clock.now() - _PINGED_SECONDS)

    def _warn_of_shared_uid(self, uid: str) -> None:
        others = self._deps.agents.others(self._node)
        if others:
            _log.warning("agent.uid_shared", node=self._node, uid=uid, others=others[:_MAX_NAMED], count=len(others))

    async def _hello(self) -> tuple[AgentState, list[Report]]:
        first = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                first = await self._next()
        if first is None or first.WhichOneof("message") != "hello":
            raise MalformedError("the first message must be a hello")
        hello = first.hello
        if hello.node != self._node:
            raise ForeignTokenError(f"the token is for {self._node} only")
        self._interval = _turns(hello.heartbeat_seconds, self._deps.heartbeat_seconds)
        view = hello_view(hello, self._deps.clock.now())
        reports = [report(each, view) for each in hello.notices]
        for source in (*view.sources, *view.pod_sources, *(each.source for each in reports)):
            self._admit(source)
        return view, reports

    def _admit(self, source: Source) -> None:
        """Limits the number of sources that one stream may report."""
        self._sources.add(source)
        if len(self._sources) > _MAX_SOURCES:
            raise TooManyError(f"more than {_MAX_SOURCES} sources")

    async def _replace_machine(self, uid: str) -> None:
        """Ends the notices on an earlier machine of this node's name."""
        known = self._deps.store.snapshot().notices.values()
        notices = [each for each in known if self._is_about_a_machine(each)]
        if len(notices) > _MAX_NOTICES:
            raise TooManyError(f"more than {_MAX_NOTICES} notices of {self._node} are known")
        earlier = [each.id for each in notices if each.subject.uid != uid]

        def change(known: ReclaimNotice | None) -> ReclaimNotice | None:
            return None if known is None else replaced(known, uid, self._deps.clock.now())

        for key in earlier:
            before = self._deps.store.snapshot().notices.get(key)
            notice = await self._deps.store.put_notice(key, change)
            failpoint(At.MACHINE_REPLACED)
            if notice is not None and before is not None and notice.state is not before.state:
                _log.info("notice.ended", notice=notice.id, subject=notice.subject.name, state=notice.state)

    def _is_about_a_machine(self, notice: ReclaimNotice) -> bool:
        """Whether an agent reported the notice: notices of the API server have the uid of the Node object instead."""
        about = notice.subject.name == self._node and notice.subject.kind is SubjectKind.NODE
        return about and notice.source not in NOT_OF_AGENTS

    async def _run(self, view: AgentState, reports: Sequence[Report]) -> None:
        """Reads messages until the agent ends the stream, or this side does."""
        self._liveness = Liveness(self._interval)
        listening = asyncio.create_task(self._read_messages(view, reports), name="agent.listen")
        reporting = asyncio.create_task(self._reports.run(), name="agent.reports")
        try:
            await asyncio.wait({listening, reporting, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            if self._deps.agents.session(self._node) > view.session:
                await self._superseded()
            elif self._is_stopping:
                goodbye = wire.Goodbye(reason="the supervisor is stopping")
                await self._send_last(wire.SupervisorMessage(goodbye=goodbye))
        finally:
            self._liveness = None
            self._reports.end()
            running = (listening, reporting, self._ended, *self._beats)
            for each in running:
                each.cancel()
            outcomes = await asyncio.gather(*running, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    def _is_current(self) -> bool:
        return self._deps.agents.is_current(self._node, self)

    async def _superseded(self) -> None:
        known = wire.Superseded(session=self._deps.agents.session(self._node))
        await self._send_last(wire.SupervisorMessage(superseded=known))

    async def _read_messages(self, view: AgentState, reports: Sequence[Report]) -> None:
        """Welcomes the agent and reads its messages until its goodbye, or until a newer stream replaces this one."""
        turn = self._deps.heartbeat_seconds
        welcome = wire.Welcome(
            heartbeat_seconds=self._interval * turn, report_heartbeat_seconds=turn, machine_updates=True
        )
        await self._write(wire.SupervisorMessage(welcome=welcome))
        for each in reports:
            await self._reports.put(each)
        self._deps.agents.mark_synced(self._node, self)
        while (message := await self._next()) is not None and self._is_current():
            match message.WhichOneof("message"):
                case "notice":
                    received = report(message.notice, view)
                    self._admit(received.source)
                    await self._reports.put(received)
                case "source":
                    name, state = source_state(message.source)
                    self._admit(name)
                    agents = self._deps.agents
                    tell = agents.pod_source if about_pods(message.source) else agents.source
                    tell(self._node, self, name, state)
                case "machine":
                    known = machine(message.machine, self._deps.clock.now())
                    self._deps.agents.describe(self._node, self, known)
                case "goodbye":
                    return
                case "heartbeat" | None:
                    pass  # Every message counts as a heartbeat; an unknown one comes from a newer agent.
                case "hello":
                    raise MalformedError("a second hello")

    async def _next(self) -> wire.AgentMessage | None:
        """The next message; None if the agent ended the stream."""
        self._is_reading = True
        received = await anext(self._messages, None)
        self._is_reading = False
        if received is not None:
            self._heard_at = self._deps.clock.now()
        if self._liveness is not None:
            self._liveness.heard()
        if isinstance(received, Exception):
            raise received
        return received

    async def _write(self, message: wire.SupervisorMessage) -> None:
        # gRPC allows one write at a time: a heartbeat during an acknowledgement would break the stream.
        async with self._writing:
            await self._context.write(message)
            if self._liveness is not None:
                self._liveness.written()

    async def _send_last(self, message: wire.SupervisorMessage) -> None:
        """Sends the message that ends the stream.

        Raises:
            SlowReaderError: The agent does not read.
        """
        try:
            async with asyncio.timeout(self._patience):
                await self._write(message)
        except TimeoutError as error:
            raise self._slow_reader() from error

    def _slow_reader(self) -> SlowReaderError:
        return SlowReaderError(f"the agent of {self._node} does not read")

    async def _acknowledge(self, received: Report) -> None:
        entry = wire.Acknowledgement.Entry(notice_id=received.acknowledged_as, revision=received.revision)
        await self._write(wire.SupervisorMessage(acknowledgement=wire.Acknowledgement(entries=[entry])))


def _turns(wanted: float, seconds: float) -> int:
    """The turns of so many seconds between heartbeats, for an agent that can do with one every `wanted` seconds."""
    if not wanted > seconds:  # It said nothing, or no number.
        return 1
    return int(min(wanted, _MAX_INTERVAL_SECONDS) // seconds) or 1
