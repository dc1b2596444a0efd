"""Keeps a stream to the supervisor open, and speaks on it.

`SupervisorUplink` connects, again and again; `AgentStream` speaks on one stream, from the hello to its end; the
functions encode reports and states as messages. `now` is monotonic throughout.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import grpc.aio
import structlog
from google.protobuf.timestamp_pb2 import Timestamp
from reclaim.v1 import reclaim_pb2 as pb
from reclaim.v1.reclaim_pb2_grpc import ReclaimServiceStub

from node_agent import notices
from node_agent.channel import SupervisorEndpoint, SupervisorUnusable
from node_agent.node import ThisNode, wait_within
from node_agent.outbox import NoticeOutbox
from node_agent.watchdog import Watchdog
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from servicekit.faults import Backoff, Fault, ReconnectDelays

AgentCall = grpc.aio.StreamStreamCall[pb.AgentMessage, pb.SupervisorMessage]

# Seconds between two attempts to connect: the bound of the first pause, and of all.
_FIRST_DELAY = 0.1
_MAX_DELAY = 5.0
_IDENTITY_SECONDS = 1.0

# Seconds. A report that is acknowledged later may have waited for the supervisor to read it, which counts its
# `seconds_left` from then on. The supervisor takes a deadline that is sooner by half as much as the better one.
_LATE_SECONDS = 1.0

# A peer that has been silent for this many heartbeats is gone.
_SILENT_HEARTBEATS = 3
# Seconds. The agent ignores a heartbeat outside of these: the shortest costs twenty messages a second.
_MIN_HEARTBEAT, _MAX_HEARTBEAT = 0.05, 600.0
# Seconds for the welcome, however far apart heartbeats are.
_WELCOME_SECONDS = 15.0
# The largest on the wire: no session can follow it.
_LAST_SESSION = 2**64 - 1
# Seconds for the goodbye: together with everything else at the end it stays well below two.
_GOODBYE_SECONDS = 0.5

# What gRPC raises on a write to a call that has ended.
_CALL_ENDED = (grpc.aio.AioRpcError, asyncio.InvalidStateError)

# Characters that the contract allows for a text for people.
_MAX_TEXT = 512

_KINDS = {notices.NoticeSubjectKind.NODE: pb.SUBJECT_KIND_NODE, notices.NoticeSubjectKind.POD: pb.SUBJECT_KIND_POD}
_ANNOUNCEMENTS = {
    notices.AnnouncementState.ACTIVE: pb.ANNOUNCEMENT_ACTIVE,
    notices.AnnouncementState.WITHDRAWN: pb.ANNOUNCEMENT_WITHDRAWN,
}
_STATES = {
    notices.PollResult.UNKNOWN: pb.SOURCE_STATE_UNKNOWN,
    notices.PollResult.CLEAR: pb.SOURCE_STATE_CLEAR,
    notices.PollResult.NOTICED: pb.SOURCE_STATE_NOTICED,
    notices.PollResult.NOT_SPOT: pb.SOURCE_STATE_NOT_SPOT,
}
_CLASSES = {
    notices.NoticeUrgency.SUDDEN: pb.NOTICE_CLASS_SUDDEN,
    notices.NoticeUrgency.SCHEDULED: pb.NOTICE_CLASS_SCHEDULED,
    notices.NoticeUrgency.HINT: pb.NOTICE_CLASS_HINT,
}
_PRICES = {
    notices.MachinePrice.UNKNOWN: pb.PRICE_CLASS_UNSPECIFIED,
    notices.MachinePrice.SPOT: pb.PRICE_CLASS_SPOT,
    notices.MachinePrice.ON_DEMAND: pb.PRICE_CLASS_ON_DEMAND,
}
_UNKNOWN_MACHINE = notices.NodeIdentity("")


class AgentReplaced(Exception):  # noqa: N818 - it names what happened
    """A newer agent reports for this node, so this one ends."""


class StreamLost(Exception):  # noqa: N818 - it names what happened
    """The stream has ended or could not be opened. The agent connects again. The text is the reason."""


class HelloOutdated(Exception):  # noqa: N818 - it names what is so
    """The agent knows more about the machine than its hello, and must connect again: the supervisor takes no update."""


class SessionSuperseded(Exception):  # noqa: N818 - it names what happened
    """The supervisor knows a higher session of this node's agent."""

    def __init__(self, session: int) -> None:
        super().__init__(f"the supervisor knows session {session}")
        self.session = session


class SupervisorUplink:
    """Connects, runs a stream, and connects again when the stream is lost.

    Args:
        endpoint: The supervisor's address and credentials.
        node: This node; nothing is sent before its uid is known.
        outbox: Reports and source states to send.
        clock: Wall time for the session, monotonic instants for the rest.
        heartbeat: The longest pause between heartbeats that is asked for, in seconds.
        version: The agent's version.
        bulkhead: Keeps what nobody foresaw with one stream, or with one report.

    Attributes:
        started_at: Monotonic instant of construction.
        fault: Its reason says why there is no stream; None while there is one, and before the first attempt.
        welcomed: Whether the supervisor has welcomed this agent on the present stream.
        welcomes: The number of streams on which it has.
    """

    def __init__(  # noqa: PLR0913 - the wiring list passes them by name
        self,
        *,
        endpoint: SupervisorEndpoint,
        node: ThisNode,
        outbox: NoticeOutbox,
        clock: Clock,
        heartbeat: float,
        version: str,
        bulkhead: Bulkhead,
    ) -> None:
        self._bulkhead = bulkhead
        self._endpoint = endpoint
        self._node = node
        self._outbox = outbox
        self._clock = clock
        self._heartbeat = heartbeat
        self._version = version
        self._session = int(clock.now() * 1000)
        self._streams = 0
        self._backoff = ReconnectDelays(Backoff(_FIRST_DELAY, _MAX_DELAY), clock)
        self.fault = Fault("supervisor", clock)
        self.watchdog = Watchdog(clock)
        self.started_at = clock.monotonic()
        self.welcomed = False
        self.welcomes = 0

    async def run(self) -> None:
        """Root task: keeps a stream open. When cancelled, it says goodbye.

        Raises:
            AgentReplaced: A newer agent has taken over.
        """
        while (node := self._node.subject) is None:
            self.watchdog.feed(_IDENTITY_SECONDS)
            await wait_within(_IDENTITY_SECONDS, self._node.known)
        # A hello that describes the machine saves another one. Where the uid is set, the first poll is late.
        self.watchdog.feed(_IDENTITY_SECONDS)
        await wait_within(_IDENTITY_SECONDS, self._node.described)
        while True:
            started = self._clock.monotonic()
            with self._bulkhead.guard("uplink", passes=AgentReplaced) as attempt:
                await self._connect_once(node)
            if attempt.failed:
                self.fault.failed("internal error, see the agent's log")
            # The backoff also grows for a supervisor that welcomes the agent and drops it at once.
            if self._clock.monotonic() - started > _MAX_DELAY:
                self._backoff.reset()
            pause = max(self._backoff.next(), attempt.retry_in or 0.0)
            self.watchdog.feed(pause)
            await asyncio.sleep(pause)

    async def _connect_once(self, node: notices.NoticeSubject) -> None:
        try:
            async with self._endpoint.channel() as channel:
                call = ReclaimServiceStub(channel).Connect(None, metadata=self._endpoint.metadata())
                stream = AgentStream(call, self._outbox, self._clock, self._heartbeat, self.watchdog, self._bulkhead)
                self._streams += 1
                speaker = AgentIdentity(node, self._session, self._version, self._node.machine, self._streams)
                await stream.run(speaker, self._on_welcome, lambda: self._node.machine)
        except HelloOutdated:
            structlog.get_logger().info("machine.updated", machine=asdict(self._node.machine))
        except StreamLost as error:
            # A server that expects TLS does not say so.
            hint = "" if self._endpoint.ca_file else " (connected without TLS, as no CA file is set)"
            self.fault.failed(f"{error}{hint}")
        except SupervisorUnusable as error:
            self.fault.failed(str(error))
        except SessionSuperseded as superseded:
            if self.welcomes:
                raise AgentReplaced(str(superseded)) from superseded
            # Never welcomed: the clock has gone back since an earlier run of this very agent.
            self._session = superseded.session + 1
            structlog.get_logger().warning("session.raised", session=self._session, reason=str(superseded))
        finally:
            self.welcomed = False

    def _on_welcome(self) -> None:
        self.welcomed = True
        self.welcomes += 1
        self.fault.recovered()
        structlog.get_logger().info("supervisor.welcomed", session=self._session)


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """The identity in a hello: the node, this run of its agent, the stream, and the machine under the node."""

    node: notices.NoticeSubject
    session: int
    version: str
    machine: notices.NodeIdentity = _UNKNOWN_MACHINE
    stream: int = 1


class AgentStream:
    """Sends the hello and then each change; receives acknowledgements until the stream ends.

    Args:
        call: The stream, before anything is written to it.
        outbox: Reports and source states to send.
        clock: Monotonic instants.
        heartbeat: The longest pause between heartbeats that is asked for, in seconds.
        watchdog: Fed by the sending loop.
        bulkhead: Keeps what nobody foresaw with the report that cannot be sent.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the uplink passes what it has itself
        self,
        call: AgentCall,
        outbox: NoticeOutbox,
        clock: Clock,
        heartbeat: float,
        watchdog: Watchdog,
        bulkhead: Bulkhead,
    ) -> None:
        self._bulkhead = bulkhead
        self._call = call
        self._outbox = outbox
        self._clock = clock
        self._heartbeat = heartbeat
        # While a report waits; infinite until the supervisor has said it, as an older one never does.
        self._report_heartbeat = math.inf
        self._reading: asyncio.Timeout | None = None
        self._watchdog = watchdog
        self._sent_at = clock.monotonic()
        self._closing = False
        self._is_welcomed = False
        self._takes_updates = False
        # Already sent on this stream, so that only changes follow.
        self._revisions: dict[notices.NoticeId, int] = {}
        # Of each report on its way: when its `seconds_left` were counted.
        self._counted: dict[notices.NoticeId, float] = {}
        self._states: dict[notices.SourceName, tuple[notices.PollResult, str]] = {}

    async def run(
        self, identity: AgentIdentity, on_welcome: Callable[[], None], machine: Callable[[], notices.NodeIdentity]
    ) -> None:
        """Runs the stream until it ends. When cancelled, it says goodbye first.

        Args:
            identity: For the hello.
            on_welcome: Called when the supervisor has welcomed the agent.
            machine: Returns what is known of the machine; called with each change of the outbox and each heartbeat.

        Raises:
            HelloOutdated: More is known of the machine, and the supervisor takes no updates.
            StreamLost: The stream ended, for whatever reason.
            SessionSuperseded: The supervisor refused this session.
        """
        # Two tasks and no group: a group would cancel both, gRPC ends a call whose reader is cancelled, and the goodbye
        # could not be written any more.
        sending = asyncio.create_task(self._send(identity, machine), name="uplink sending")
        receiving = asyncio.create_task(self._receive(on_welcome), name="uplink receiving")
        try:
            await asyncio.wait([sending, receiving], return_when=asyncio.FIRST_EXCEPTION)
            # The supervisor ends the stream after a goodbye. Cancelled before that, a call may lose what was written.
            await asyncio.wait([receiving], timeout=_GOODBYE_SECONDS)
        except asyncio.CancelledError:
            # The sending task is asked to stop and not cancelled: in the middle of a write, cancelling would end the
            # call without a goodbye. Then the supervisor may end the stream.
            self._closing = True
            self._outbox.changed.set()
            await asyncio.wait([sending, receiving], timeout=_GOODBYE_SECONDS)
            raise
        finally:
            sending.cancel()
            receiving.cancel()
            ends = await asyncio.gather(sending, receiving, return_exceptions=True)
            self._call.cancel()
        raise next(end for end in ends if isinstance(end, Exception))

    async def _send(self, identity: AgentIdentity, machine: Callable[[], notices.NodeIdentity]) -> None:
        """Sends reports and states until the call ends.

        It raises no error when the call ends, because the receiving task has the reason.
        """
        with contextlib.suppress(*_CALL_ENDED):
            await self._send_hello(identity)
            sent = identity.machine
            while not self._closing:
                # Only the welcome tells whether the supervisor takes an update.
                if self._is_welcomed and (known := machine()) != sent:
                    if not self._takes_updates:
                        break
                    sent = known
                    await self._write(pb.AgentMessage(machine=_encode_machine(known)))
                    structlog.get_logger().info("machine.updated", machine=asdict(known))
                self._watchdog.feed(self._heartbeat)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._sent_at + self._heartbeat - self._clock.monotonic()):
                        await self._outbox.changed.wait()
                        self._outbox.changed.clear()
                await self._send_changes()
                if self._clock.monotonic() >= self._sent_at + self._heartbeat:
                    await self._write(pb.AgentMessage(heartbeat=pb.Heartbeat()))
            await self._send_changes()
            reason = "the agent stops" if self._closing else "the agent says hello again"
            await self._write(pb.AgentMessage(goodbye=pb.Goodbye(reason=reason)))
            await self._call.done_writing()
            if not self._closing:
                raise HelloOutdated

    async def _send_hello(self, identity: AgentIdentity) -> None:
        statuses, reports = self._outbox.statuses(), self._outbox.reports()
        self._states = {status.source: (status.state, status.detail) for status in statuses}
        self._revisions = {report.id: report.revision for report in reports}
        failpoint(notices.AgentFailpoint.HELLO_SENDING)
        sources = [self._encoded_status(status) for status in statuses]
        active = [notice for report in reports if (notice := self._encoded_report(report)) is not None]
        await self._write(encode_hello(identity, sources, active, self._heartbeat))
        failpoint(notices.AgentFailpoint.HELLO_SENT)

    async def _send_changes(self) -> None:
        for report in self._outbox.reports():
            if self._revisions.get(report.id) != report.revision:
                self._revisions[report.id] = report.revision
                notice = self._encoded_report(report)
                if notice is None:
                    continue
                # Shortens the read that waits, which began when no report did. Before the write, as the answer may be
                # read before a write returns.
                if self._reading is not None and not self._reading.expired():
                    latest = asyncio.get_running_loop().time() + self._patience()
                    self._reading.reschedule(min(latest, self._reading.when() or latest))
                failpoint(notices.AgentFailpoint.NOTICE_SENDING)
                await self._write(pb.AgentMessage(notice=notice))
                failpoint(notices.AgentFailpoint.NOTICE_SENT)
        for status in self._outbox.statuses():
            if self._states.get(status.source) != (status.state, status.detail):
                self._states[status.source] = (status.state, status.detail)
                await self._write(pb.AgentMessage(source=self._encoded_status(status)))

    def _encoded_report(self, report: notices.NoticeReport) -> pb.NoticeReport | None:
        """Encodes the report; None if it cannot be encoded.

        The status still says that its source announces a reclaim.
        """
        with self._bulkhead.guard("report", report.id):
            now = self._clock.monotonic()
            self._counted[report.id] = now
            return encode_report(report, now)
        return None

    def _encoded_status(self, status: notices.ReportedSource) -> pb.SourceReport:
        """Encodes the status. It leaves no source out, because the supervisor would think that it announces nothing."""
        with self._bulkhead.guard("report", status.source):
            return encode_status(status, self._clock.monotonic())
        return pb.SourceReport(source=status.source, state=pb.SOURCE_STATE_UNKNOWN, about=_KINDS[status.about])

    async def _write(self, message: pb.AgentMessage) -> None:
        await self._call.write(message)
        self._sent_at = self._clock.monotonic()

    async def _receive(self, on_welcome: Callable[[], None]) -> None:
        while True:
            try:
                async with asyncio.timeout(self._patience()) as self._reading:
                    message = await self._call.read()
            except TimeoutError as error:
                waits = self._is_welcomed and self._outbox.unacknowledged()
                silence = f"no message for {self._patience():g} s{' while a report waits' if waits else ''}"
                raise StreamLost(silence) from error
            except grpc.aio.AioRpcError as error:
                raise StreamLost(f"{error.code().name}: {error.details()}") from error
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling() > 0:
                    raise
                # gRPC reports a call that the peer cancelled in this way.
                raise StreamLost("CANCELLED") from None
            finally:
                self._reading = None
            if not isinstance(message, pb.SupervisorMessage):
                raise StreamLost("the supervisor ended the stream")
            self._handle(message, on_welcome)

    def _patience(self) -> float:
        """Returns the seconds of silence after which the supervisor counts as gone, or as hung while a report waits."""
        heartbeat = min(self._heartbeat, self._report_heartbeat) if self._outbox.unacknowledged() else self._heartbeat
        limit = _SILENT_HEARTBEATS * heartbeat
        return limit if self._is_welcomed else min(limit, _WELCOME_SECONDS)

    def _handle(self, message: pb.SupervisorMessage, on_welcome: Callable[[], None]) -> None:
        match message.WhichOneof("message"):
            case "welcome":
                welcome = message.welcome
                self._is_welcomed = True
                self._takes_updates = welcome.machine_updates
                if _MIN_HEARTBEAT <= welcome.report_heartbeat_seconds <= _MAX_HEARTBEAT:
                    self._report_heartbeat = welcome.report_heartbeat_seconds
                if _MIN_HEARTBEAT <= welcome.heartbeat_seconds <= _MAX_HEARTBEAT:
                    self._heartbeat = welcome.heartbeat_seconds
                on_welcome()
                # The sending task may wait for longer than the new heartbeat, or have more to say of the machine.
                self._outbox.changed.set()
            case "acknowledgement":
                failpoint(notices.AgentFailpoint.ACKNOWLEDGEMENT_RECEIVED)
                for entry in message.acknowledgement.entries:
                    self._acknowledged(notices.NoticeId(entry.notice_id), entry.revision)
                failpoint(notices.AgentFailpoint.ACKNOWLEDGEMENT_KEPT)
            case "superseded" if message.superseded.session < _LAST_SESSION:
                raise SessionSuperseded(message.superseded.session)
            case "superseded":
                raise StreamLost("the supervisor knows a session that none can follow")
            case "goodbye":
                raise StreamLost(f"the supervisor says goodbye: {message.goodbye.reason}")
            case _:
                # A heartbeat, or a message of a later version: the peer is alive.
                pass

    def _acknowledged(self, notice: notices.NoticeId, revision: int) -> None:
        """Records that a report is durable, and repeats it with the seconds that are left now if that took long."""
        self._outbox.acknowledge(notice, revision)
        if revision != self._revisions.get(notice):
            return
        now = self._clock.monotonic()
        if now - self._counted.pop(notice, now) > _LATE_SECONDS:
            del self._revisions[notice]
            self._outbox.changed.set()


def encode_hello(
    identity: AgentIdentity, sources: Sequence[pb.SourceReport], notices: Sequence[pb.NoticeReport], heartbeat: float
) -> pb.AgentMessage:
    return pb.AgentMessage(
        hello=pb.Hello(
            node=identity.node.name,
            node_uid=identity.node.uid,
            session=identity.session,
            stream=identity.stream,
            agent_version=identity.version,
            machine=_encode_machine(identity.machine),
            sources=sources,
            notices=notices,
            heartbeat_seconds=heartbeat,
        )
    )


def _encode_machine(machine: notices.NodeIdentity) -> pb.Machine:
    return pb.Machine(
        cloud=machine.cloud,
        region=machine.region,
        zone=machine.zone,
        instance_type=machine.instance_type,
        price_class=_PRICES[machine.price_class],
        spot_strategy=machine.spot_strategy,
    )


def encode_report(report: notices.NoticeReport, now: float) -> pb.NoticeReport:
    subject = pb.Subject(kind=_KINDS[report.subject.kind], name=report.subject.name, uid=report.subject.uid)
    message = pb.NoticeReport(
        source=report.source,
        subject=subject,
        revision=report.revision,
        announcement=_ANNOUNCEMENTS[report.announcement],
        message=report.message[:_MAX_TEXT],
        notice_class=_CLASSES[report.notice_class],
        cancellable=report.cancellable,
    )
    if report.deadline is not None:
        message.seconds_left = report.deadline - now
    if report.announced is not None:
        message.deadline.CopyFrom(Timestamp(seconds=int(report.announced.timestamp())))
    return message


def encode_status(status: notices.ReportedSource, now: float) -> pb.SourceReport:
    message = pb.SourceReport(
        source=status.source,
        state=_STATES[status.state],
        detail=status.detail[:_MAX_TEXT],
        about=_KINDS[status.about],
    )
    if status.last_good is not None:
        message.last_good_poll_age = now - status.last_good
    return message
