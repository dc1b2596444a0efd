"""Speaks on one stream to the supervisor, from the hello to its end."""

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import asdict

import grpc.aio
import structlog
from reclaim.v1 import reclaim_pb2 as pb

from node_agent import wire
from node_agent.failpoints import At
from node_agent.notices import NoticeId, NoticeReport, SourceName, SourceState, SourceStatus
from node_agent.outbox import Outbox
from node_agent.sources import NodeIdentity
from node_agent.watchdog import Watchdog
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.failpoints import failpoint

Call = grpc.aio.StreamStreamCall[pb.AgentMessage, pb.SupervisorMessage]

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


class StreamLost(Exception):  # noqa: N818 - it names what happened
    """The stream has ended or could not be opened: connect again. The text is the reason."""


class HelloOutdated(Exception):  # noqa: N818 - it names what is so
    """More is known of the machine than the hello said, and the supervisor is too old for an update: connect again."""


class SessionSuperseded(Exception):  # noqa: N818 - it names what happened
    """The supervisor knows a higher session of this node's agent."""

    def __init__(self, session: int) -> None:
        super().__init__(f"the supervisor knows session {session}")
        self.session = session


class Stream:
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
        self, call: Call, outbox: Outbox, clock: Clock, heartbeat: float, watchdog: Watchdog, bulkhead: Bulkhead
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
        self._revisions: dict[NoticeId, int] = {}
        self._states: dict[SourceName, tuple[SourceState, str]] = {}

    async def run(
        self,
        identity: wire.AgentIdentity,
        on_welcome: Callable[[], None],
        machine: Callable[[], NodeIdentity] = lambda: NodeIdentity(""),
    ) -> None:
        """Runs the stream until it ends. When cancelled, it says goodbye first.

        Args:
            identity: For the hello.
            on_welcome: Called when the supervisor has welcomed the agent.
            machine: What is known of the machine; asked with each change of the outbox and each heartbeat.

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
            await self._close(sending, receiving)
            raise
        finally:
            sending.cancel()
            receiving.cancel()
            ends = await asyncio.gather(sending, receiving, return_exceptions=True)
            self._call.cancel()
        raise next(end for end in ends if isinstance(end, Exception))

    async def _close(self, *tasks: asyncio.Task[None]) -> None:
        """Has the goodbye sent and lets the supervisor end the stream, within a time limit.

        The sending task is asked to stop and not cancelled: in the middle of a write, cancelling would end the call
        without a goodbye.
        """
        self._closing = True
        self._outbox.wake()
        await asyncio.wait(tasks, timeout=_GOODBYE_SECONDS)

    async def _send(self, identity: wire.AgentIdentity, machine: Callable[[], NodeIdentity]) -> None:
        """Returns without an error when the call has ended: the receiving task has the reason."""
        with contextlib.suppress(*_CALL_ENDED):
            await self._send_hello(identity)
            said = identity.machine
            while not self._closing:
                # Only the welcome tells whether the supervisor takes an update.
                if self._is_welcomed and (known := machine()) != said:
                    if not self._takes_updates:
                        break
                    said = known
                    await self._write(wire.machine(known))
                    structlog.get_logger().info("machine.updated", machine=asdict(known))
                self._watchdog.feed(self._heartbeat)
                await self._wait_for_change()
                await self._send_changes()
                if self._clock.monotonic() >= self._sent_at + self._heartbeat:
                    await self._write(wire.heartbeat())
            await self._send_changes()
            await self._write(wire.goodbye("the agent stops" if self._closing else "the agent says hello again"))
            await self._call.done_writing()
            if not self._closing:
                raise HelloOutdated

    async def _wait_for_change(self) -> None:
        """Returns when there may be something to send, or a heartbeat is due."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._sent_at + self._heartbeat - self._clock.monotonic()):
                await self._outbox.wait_changed()

    async def _send_hello(self, identity: wire.AgentIdentity) -> None:
        statuses, reports = self._outbox.statuses(), self._outbox.reports()
        self._states = {status.source: (status.state, status.detail) for status in statuses}
        self._revisions = {report.id: report.revision for report in reports}
        failpoint(At.HELLO_SENDING)
        sources = [self._encoded_status(status) for status in statuses]
        notices = [notice for report in reports if (notice := self._encoded_report(report)) is not None]
        await self._write(wire.hello(identity, sources, notices, self._heartbeat))
        failpoint(At.HELLO_SENT)

    async def _send_changes(self) -> None:
        for report in self._outbox.unacknowledged():
            if self._revisions.get(report.id) != report.revision:
                self._revisions[report.id] = report.revision
                notice = self._encoded_report(report)
                if notice is None:
                    continue
                # Before the write, as the answer may be read before a write returns.
                self._expect_answer()
                failpoint(At.NOTICE_SENDING)
                await self._write(pb.AgentMessage(notice=notice))
                failpoint(At.NOTICE_SENT)
        for status in self._outbox.statuses():
            if self._states.get(status.source) != (status.state, status.detail):
                self._states[status.source] = (status.state, status.detail)
                await self._write(pb.AgentMessage(source=self._encoded_status(status)))

    def _encoded_report(self, report: NoticeReport) -> pb.NoticeReport | None:
        """The report as a message; None if it cannot be one. Its source is noticed all the same."""
        with self._bulkhead.guard("report", report.id):
            return wire.notice(report, self._clock.monotonic())
        return None

    def _encoded_status(self, status: SourceStatus) -> pb.SourceReport:
        """The status as a message. A source that was left out would count as if it announced nothing."""
        with self._bulkhead.guard("report", status.source):
            return wire.source(status, self._clock.monotonic())
        return wire.unknown_source(status)

    async def _write(self, message: pb.AgentMessage) -> None:
        await self._call.write(message)
        self._sent_at = self._clock.monotonic()

    async def _receive(self, on_welcome: Callable[[], None]) -> None:
        while True:
            self._handle(await self._next(), on_welcome)

    async def _next(self) -> pb.SupervisorMessage:
        try:
            async with asyncio.timeout(self._patience()) as self._reading:
                message = await self._call.read()
        except TimeoutError as error:
            raise StreamLost(self._silence()) from error
        except grpc.aio.AioRpcError as error:
            raise StreamLost(f"{error.code().name}: {error.details()}") from error
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            # gRPC reports a call that the peer cancelled in this way.
            raise StreamLost("CANCELLED") from None
        finally:
            self._reading = None
        if isinstance(message, pb.SupervisorMessage):
            return message
        raise StreamLost("the supervisor ended the stream")

    def _patience(self) -> float:
        """Seconds without a message after which the supervisor is gone, or hangs while a report waits."""
        heartbeat = min(self._heartbeat, self._report_heartbeat) if self._outbox.unacknowledged() else self._heartbeat
        limit = _SILENT_HEARTBEATS * heartbeat
        return limit if self._is_welcomed else min(limit, _WELCOME_SECONDS)

    def _silence(self) -> str:
        waits = self._is_welcomed and self._outbox.unacknowledged()
        return f"no message for {self._patience():g} s{' while a report waits' if waits else ''}"

    def _expect_answer(self) -> None:
        """Shortens the read that waits, which began when no report did."""
        if self._reading is None or self._reading.expired():
            return
        latest = asyncio.get_running_loop().time() + self._patience()
        self._reading.reschedule(min(latest, self._reading.when() or latest))

    def _handle(self, message: pb.SupervisorMessage, on_welcome: Callable[[], None]) -> None:
        match message.WhichOneof("message"):
            case "welcome":
                self._is_welcomed = True
                self._takes_updates = message.welcome.machine_updates
                self._set_heartbeats(message.welcome)
                on_welcome()
                # The sending task may wait for longer than the new heartbeat, or have more to say of the machine.
                self._outbox.wake()
            case "acknowledgement":
                failpoint(At.ACKNOWLEDGEMENT_RECEIVED)
                for entry in message.acknowledgement.entries:
                    self._outbox.acknowledge(NoticeId(entry.notice_id), entry.revision)
                failpoint(At.ACKNOWLEDGEMENT_KEPT)
            case "superseded" if message.superseded.session < _LAST_SESSION:
                raise SessionSuperseded(message.superseded.session)
            case "superseded":
                raise StreamLost("the supervisor knows a session that none can follow")
            case "goodbye":
                raise StreamLost(f"the supervisor says goodbye: {message.goodbye.reason}")
            case _:
                # A heartbeat, or a message of a later version: the peer is alive.
                pass

    def _set_heartbeats(self, welcome: pb.Welcome) -> None:
        if _MIN_HEARTBEAT <= welcome.report_heartbeat_seconds <= _MAX_HEARTBEAT:
            self._report_heartbeat = welcome.report_heartbeat_seconds
        if _MIN_HEARTBEAT <= welcome.heartbeat_seconds <= _MAX_HEARTBEAT:
            self._heartbeat = welcome.heartbeat_seconds


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
