"""Serves agents over gRPC: their streams with hello, reports and heartbeats. Detects agents that are gone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from enum import Enum, auto
from typing import Any

import grpc
import structlog
from reclaim.v1 import reclaim_pb2 as wire

from servicekit.failpoints import failpoint
from supervisor.decide.notices import replaced
from supervisor.domain.ids import Host, Source
from supervisor.domain.notice import NOT_OF_AGENTS, Report, SubjectKind
from supervisor.failpoints import At
from supervisor.identity.tokens import AgentPrincipal, AuthenticationUnavailableError, BadTokenError, ForeignPodError
from supervisor.ingest import agent_reports
from supervisor.ingest.agent_registry import AgentState
from supervisor.ingest.errors import CODES, ForeignTokenError, MalformedError, SlowReaderError, TooManyError
from supervisor.refusals import Code, Wire, readable

_CONNECT = "/reclaim.v1.ReclaimService/Connect"
_SILENT_HEARTBEATS = 3
_BLOCKED_TURNS = 3
_PINGED_SECONDS = 70.0
"""A connection that is lost, and not closed, answered a ping at most this long ago: every 60 s, within 10 s."""
_HEARTBEATS_AT_ONCE = 100
_MAX_INTERVAL_SECONDS = 600.0
_HELLO_SECONDS = 1.0
"""The time limit for the hello of an agent that will be refused."""

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


class LivenessVerdict(Enum):
    """What a turn of `Liveness` has found."""

    FINE = auto()
    HEARTBEAT_DUE = auto()
    SILENT = auto()
    """Nothing was heard for three heartbeats."""
    NOT_READING = auto()
    """One write has waited for three turns."""


class Liveness:
    """Counts turns of the timer of all streams: since the peer's last message, and since the last write to it.

    Turns and not seconds: a supervisor that was blocked itself, for example by thousands of handshakes, did not read
    either, and lost 4,700 of 5,000 agents at once when it used the clock.

    Args:
        interval: Turns between heartbeats, the same both ways.
    """

    __slots__ = ("_blocked", "_interval", "_unheard", "_unsent")

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._unheard = self._unsent = self._blocked = 0

    def heard(self) -> None:
        """Records that a message has come."""
        self._unheard = 0

    def written(self) -> None:
        """Records that a write has ended."""
        self._unsent = self._blocked = 0

    def turn(self, *, is_writing: bool, is_reading: bool, is_awaited: bool) -> LivenessVerdict:
        """Counts a turn.

        Args:
            is_writing: Whether a write waits.
            is_reading: Whether this side waits for a message. While it stores one, it hears nothing of its peer.
            is_awaited: Whether the peer waits for an answer. It then has a heartbeat each turn, as that is how it tells
                a slow store from a supervisor that hangs.
        """
        self._unheard += is_reading
        self._unsent += 1
        self._blocked += is_writing
        if self._blocked >= _BLOCKED_TURNS:
            return LivenessVerdict.NOT_READING
        if self._unheard >= _SILENT_HEARTBEATS * self._interval:
            return LivenessVerdict.SILENT
        is_due = is_awaited or self._unsent >= self._interval
        return LivenessVerdict.HEARTBEAT_DUE if is_due and not is_writing else LivenessVerdict.FINE


class ReclaimService(grpc.GenericRpcHandler):  # type: ignore[type-arg] # The stubs' parameters do not exist.
    """Serves agents. `finish` ends every stream with a goodbye."""

    def __init__(self, deps: agent_reports.AgentDependencies) -> None:
        self._deps = deps
        self._streams: set[_AgentStream] = set()
        self._is_stopping = False
        self._connect = grpc.stream_stream_rpc_method_handler(
            self.connect,
            request_deserializer=agent_reports.decode,
            response_serializer=wire.SupervisorMessage.SerializeToString,
        )

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """Returns the handler of the only method. gRPC answers UNIMPLEMENTED to all others."""
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

    async def connect(self, messages: AsyncIterator[agent_reports.Received], context: _Context) -> None:
        """Serves one agent's stream."""
        try:
            stream = _AgentStream(self._deps, await self._authenticate(messages, context), messages, context)
            self._streams.add(stream)
            if self._is_stopping:
                stream.finish()
            try:
                await stream.serve()
            finally:
                self._streams.discard(stream)
        except grpc.aio.InternalError:  # The agent disconnected during a write; gRPC ignores this error.
            raise
        except SlowReaderError as error:
            self._deps.refusals.add(Wire.GRPC, Code.SLOW_READER, str(error))
            # A status would wait behind the unread messages, as gRPC cannot reset one stream.
            raise asyncio.CancelledError from error
        except Exception as error:  # noqa: BLE001 - an exception that is not a refusal is a bug, and counted as one
            code = CODES.get(type(error), Code.INTERNAL)
            self._deps.refusals.add(Wire.GRPC, code, str(error), None if type(error) in CODES else error)
            await context.abort(_STATUS[code], f"{code}: {readable(str(error))}")

    async def _authenticate(self, messages: AsyncIterator[agent_reports.Received], context: _Context) -> Host:
        try:
            return await self._node_of_token(context)
        except (BadTokenError, ForeignTokenError, ForeignPodError, AuthenticationUnavailableError):
            # A client that is refused while it still writes its hello would report INTERNAL without the reason.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HELLO_SECONDS):
                    await anext(messages, None)
            raise

    async def _node_of_token(self, context: _Context) -> Host:
        header = dict(context.invocation_metadata() or ()).get("authorization")
        principal = await self._deps.authenticate(header if isinstance(header, str) else None)
        if not isinstance(principal, AgentPrincipal):
            raise ForeignTokenError("the token is not an agent's")
        return principal.node


class _AgentStream:
    """Serves one connected agent."""

    def __init__(
        self,
        deps: agent_reports.AgentDependencies,
        node: Host,
        messages: AsyncIterator[agent_reports.Received],
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
        self._does_not_read = f"the agent of {node} does not read"
        self._reports = agent_reports.ReportHandler(deps, node, self._acknowledge)

    def finish(self) -> None:
        """Ends the stream with a goodbye."""
        self._is_stopping = True
        self._end(None)

    def heartbeat(self) -> None:
        """Takes a turn: sends a heartbeat if one is due, and ends the stream if the agent is gone."""
        if self._liveness is None:
            return
        verdict = self._liveness.turn(
            is_writing=self._writing.locked(), is_reading=self._is_reading, is_awaited=self._reports.has_unstored
        )
        match verdict:
            case LivenessVerdict.HEARTBEAT_DUE:
                beat = asyncio.create_task(self._write(wire.SupervisorMessage(heartbeat=wire.Heartbeat())))
                self._beats.add(beat)
                beat.add_done_callback(self._on_beat_sent)
            case LivenessVerdict.SILENT:
                _log.warning("agent.silent", node=self._node)
                self._is_silent = True
                self._end(None)
            case LivenessVerdict.NOT_READING:
                self._end(SlowReaderError(self._does_not_read))

    def _on_beat_sent(self, beat: asyncio.Task[None]) -> None:
        self._beats.discard(beat)
        if not beat.cancelled() and (error := beat.exception()) is not None:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    async def serve(self) -> None:
        """Serves the stream until either side ends it."""
        agents, node = self._deps.agents, self._node
        view, reports = await self._read_hello()
        known = agents.connect(view, self)
        if known is not None:
            later = f"session {known.session}, stream {known.stream} of {node} is known"
            self._deps.refusals.add(Wire.GRPC, Code.OLDER_SESSION, later)
            if known.session > view.session:
                await self._send_last(wire.SupervisorMessage(superseded=wire.Superseded(session=known.session)))
            return
        failpoint(At.AGENT_CONNECTED)
        _log.info("agent.connected", node=node, session=view.session)
        others = agents.others(node)
        if others:
            _log.warning("agent.uid_shared", node=node, uid=view.uid, others=others[:_MAX_NAMED], count=len(others))
        try:
            await self._replace_machine(view.uid)
            await self._run(view, reports)
        finally:
            # The last message, or the last ping that was answered. A program that hangs also answers pings.
            pinged_at = self._heard_at if self._is_silent else self._deps.clock.now() - _PINGED_SECONDS
            agents.disconnect(node, self, max(self._heard_at, pinged_at))
            _log.info("agent.disconnected", node=node, session=view.session)

    async def _read_hello(self) -> tuple[AgentState, list[Report]]:
        first = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience):
                first = await self._next()
        if first is None or first.WhichOneof("message") != "hello":
            raise MalformedError("the first message must be a hello")
        hello = first.hello
        if hello.node != self._node:
            raise ForeignTokenError(f"the token is for {self._node} only")
        wanted, turn = hello.heartbeat_seconds, self._deps.heartbeat_seconds
        # An agent that names no interval, or no number, gets a heartbeat each turn.
        self._interval = (int(min(wanted, _MAX_INTERVAL_SECONDS) // turn) or 1) if wanted > turn else 1
        view = agent_reports.read_hello(hello, self._deps.clock.now())
        reports = [agent_reports.read_report(each, view) for each in hello.notices]
        for source in (*view.sources, *view.pod_sources, *(each.source for each in reports)):
            self._admit(source)
        return view, reports

    def _admit(self, source: Source) -> None:
        """Limits the number of sources that one stream may report."""
        self._sources.add(source)
        if len(self._sources) > agent_reports.MAX_SOURCES:
            raise TooManyError(f"more than {agent_reports.MAX_SOURCES} sources")

    async def _replace_machine(self, uid: str) -> None:
        """Ends the notices on an earlier machine of this node's name."""
        notices = [
            notice
            for notice in self._deps.store.snapshot().notices.values()
            if notice.subject.name == self._node
            and notice.subject.kind is SubjectKind.NODE
            # Notices of the API server have the uid of the Node object instead of the machine's.
            and notice.source not in NOT_OF_AGENTS
        ]
        if len(notices) > _MAX_NOTICES:
            raise TooManyError(f"more than {_MAX_NOTICES} notices of {self._node} are known")

        for key in [each.id for each in notices if each.subject.uid != uid]:
            before = self._deps.store.snapshot().notices.get(key)
            notice = await self._deps.store.put_notice(
                key, lambda known: None if known is None else replaced(known, uid, self._deps.clock.now())
            )
            failpoint(At.MACHINE_REPLACED)
            if notice is not None and before is not None and notice.state is not before.state:
                _log.info("notice.ended", notice=notice.id, subject=notice.subject.name, state=notice.state)

    async def _run(self, view: AgentState, reports: Sequence[Report]) -> None:
        """Reads messages until the agent ends the stream, or this side does."""
        self._liveness = Liveness(self._interval)
        listening = asyncio.create_task(self._read_messages(view, reports), name="agent.listen")
        reporting = asyncio.create_task(self._reports.run(), name="agent.reports")
        try:
            await asyncio.wait({listening, reporting, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            known = self._deps.agents.by_node.get(self._node)
            if known is not None and known.session > view.session:
                await self._send_last(wire.SupervisorMessage(superseded=wire.Superseded(session=known.session)))
            elif self._is_stopping:
                goodbye = wire.Goodbye(reason="the supervisor is stopping")
                await self._send_last(wire.SupervisorMessage(goodbye=goodbye))
        finally:
            self._liveness = None
            # The agent repeats in its next hello what is dropped here.
            self._deps.unconfirmed.end(self._reports)
            running = (listening, reporting, self._ended, *self._beats)
            for each in running:
                each.cancel()
            outcomes = await asyncio.gather(*running, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    async def _read_messages(self, view: AgentState, reports: Sequence[Report]) -> None:
        """Welcomes the agent and reads its messages until its goodbye, or until a newer stream replaces this one."""
        agents, turn = self._deps.agents, self._deps.heartbeat_seconds
        welcome = wire.Welcome(
            heartbeat_seconds=self._interval * turn, report_heartbeat_seconds=turn, machine_updates=True
        )
        await self._write(wire.SupervisorMessage(welcome=welcome))
        for each in reports:
            await self._reports.put(each)
        agents.mark_synced(self._node, self)
        while (message := await self._next()) is not None and agents.is_current(self._node, self):
            match message.WhichOneof("message"):
                case "notice":
                    received = agent_reports.read_report(message.notice, view)
                    self._admit(received.source)
                    await self._reports.put(received)
                case "source":
                    name, state = agent_reports.read_source(message.source)
                    self._admit(name)
                    about_pods = message.source.about == wire.SUBJECT_KIND_POD
                    agents.put_source(self._node, self, name, state, about_pods=about_pods)
                case "machine":
                    agents.put_machine(
                        self._node, self, agent_reports.read_machine(message.machine, self._deps.clock.now())
                    )
                case "goodbye":
                    return
                case "heartbeat" | None:
                    pass  # Every message counts as a heartbeat; an unknown one comes from a newer agent.
                case "hello":
                    raise MalformedError("a second hello")

    async def _next(self) -> wire.AgentMessage | None:
        """Returns the next message; None if the agent ended the stream."""
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
            raise SlowReaderError(self._does_not_read) from error

    async def _acknowledge(self, received: Report) -> None:
        entry = wire.Acknowledgement.Entry(
            notice_id=f"{received.source}/{received.subject.uid}", revision=received.revision
        )
        await self._write(wire.SupervisorMessage(acknowledgement=wire.Acknowledgement(entries=[entry])))
