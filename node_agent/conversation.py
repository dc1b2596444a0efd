"""One stream, from the hello to its end."""

import asyncio
import contextlib
from collections.abc import Callable

import grpc.aio
from reclaim.v1 import reclaim_pb2 as pb

from node_agent import wire
from node_agent.failpoints import At
from node_agent.notices import NoticeId, SourceName, SourceState
from node_agent.outbox import Outbox
from node_agent.pulse import Pulse
from servicekit.clock import Clock
from servicekit.failpoints import failpoint

Call = grpc.aio.StreamStreamCall[pb.AgentMessage, pb.SupervisorMessage]

# A peer that was silent for so many heartbeats is gone.
_SILENT_HEARTBEATS = 3
# A supervisor that names one beyond these, in seconds, is not followed: the shortest costs twenty messages a second.
_SHORTEST_HEARTBEAT, _LONGEST_HEARTBEAT = 0.05, 60.0
# The wire's largest: no session could follow it.
_LAST_SESSION = 2**64 - 1
# Seconds that a goodbye may take: with everything else that happens at the end well below two.
_GOODBYE_SECONDS = 0.5

# How gRPC says that a call is over to somebody who writes to it.
_OVER = (grpc.aio.AioRpcError, asyncio.InvalidStateError)


class StreamLost(Exception):  # noqa: N818 - it names what happened
    """The stream is over, or never was: connect again. The text is the reason."""


class SessionSuperseded(Exception):  # noqa: N818 - it names what happened
    """The supervisor knows a higher session of this node's agent."""

    def __init__(self, session: int) -> None:
        super().__init__(f"the supervisor knows session {session}")
        self.session = session


class Conversation:
    """Says hello, then what changes, and takes acknowledgements until the stream ends.

    Args:
        call: The stream, not written to yet.
        outbox: What there is to say.
        clock: Monotonic instants.
        heartbeat: Seconds between heartbeats until the supervisor names its own.
        pulse: Beats while there is somebody to speak.
    """

    def __init__(self, call: Call, outbox: Outbox, clock: Clock, heartbeat: float, pulse: Pulse) -> None:
        self._call = call
        self._outbox = outbox
        self._clock = clock
        self._heartbeat = heartbeat
        self._pulse = pulse
        self._spoke_at = clock.monotonic()
        self._parting = False
        # What this stream has said already, so that only changes follow.
        self._revisions: dict[NoticeId, int] = {}
        self._states: dict[SourceName, tuple[SourceState, str]] = {}

    async def hold(self, speaker: wire.Speaker, on_welcome: Callable[[], None]) -> None:
        """Run the stream until it ends; cancelled, it says goodbye first.

        Raises:
            StreamLost: It ended, in whatever way.
            SessionSuperseded: The supervisor refused this session.
        """
        # Two tasks and no group: a group would cancel both, gRPC ends a call whose reader is cancelled, and the goodbye
        # could not be written any more.
        speaking = asyncio.create_task(self._speak(speaker), name="uplink speaking")
        listening = asyncio.create_task(self._listen(on_welcome), name="uplink listening")
        try:
            await asyncio.wait([speaking, listening], return_when=asyncio.FIRST_EXCEPTION)
        except asyncio.CancelledError:
            await self._part(speaking, listening)
            raise
        finally:
            speaking.cancel()
            listening.cancel()
            ends = await asyncio.gather(listening, speaking, return_exceptions=True)
            self._call.cancel()
        raise next(end for end in ends if isinstance(end, Exception))

    async def _part(self, *tasks: asyncio.Task[None]) -> None:
        """Have goodbye said, and let the supervisor end the stream; all of it bounded.

        The speaker is asked and not cancelled: in the middle of a write that would end the call without a goodbye.
        """
        self._parting = True
        self._outbox.wake()
        await asyncio.wait(tasks, timeout=_GOODBYE_SECONDS)

    async def _speak(self, speaker: wire.Speaker) -> None:
        """Ends quietly when the call is over: whoever listens learns why."""
        with contextlib.suppress(*_OVER):
            await self._say_hello(speaker)
            while not self._parting:
                self._pulse.beat(self._heartbeat)
                await self._wait_for_change()
                await self._say_changes()
                if self._clock.monotonic() >= self._spoke_at + self._heartbeat:
                    await self._write(wire.heartbeat())
            await self._say_changes()
            await self._write(wire.goodbye("the agent stops"))
            await self._call.done_writing()

    async def _wait_for_change(self) -> None:
        """Until there may be something to say, or a heartbeat is due."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._spoke_at + self._heartbeat - self._clock.monotonic()):
                await self._outbox.changed()

    async def _say_hello(self, speaker: wire.Speaker) -> None:
        statuses, reports = self._outbox.statuses(), self._outbox.everything()
        self._states = {status.source: (status.state, status.detail) for status in statuses}
        self._revisions = {report.id: report.revision for report in reports}
        failpoint(At.HELLO_SENDING)
        await self._write(wire.hello(speaker, statuses, reports, self._clock.monotonic()))
        failpoint(At.HELLO_SENT)

    async def _say_changes(self) -> None:
        for report in self._outbox.unacknowledged():
            if self._revisions.get(report.id) != report.revision:
                self._revisions[report.id] = report.revision
                failpoint(At.NOTICE_SENDING)
                await self._write(wire.notice(report, self._clock.monotonic()))
                failpoint(At.NOTICE_SENT)
        for status in self._outbox.statuses():
            if self._states.get(status.source) != (status.state, status.detail):
                self._states[status.source] = (status.state, status.detail)
                await self._write(wire.source(status, self._clock.monotonic()))

    async def _write(self, message: pb.AgentMessage) -> None:
        await self._call.write(message)
        self._spoke_at = self._clock.monotonic()

    async def _listen(self, on_welcome: Callable[[], None]) -> None:
        while True:
            self._take(await self._next(), on_welcome)

    async def _next(self) -> pb.SupervisorMessage:
        limit = _SILENT_HEARTBEATS * self._heartbeat
        try:
            async with asyncio.timeout(limit):
                message = await self._call.read()
        except TimeoutError as error:
            raise StreamLost(f"nothing heard for {limit:g} s") from error
        except grpc.aio.AioRpcError as error:
            raise StreamLost(f"{error.code().name}: {error.details()}") from error
        except asyncio.CancelledError:
            if _asked_to_end():
                raise
            # gRPC's way of reporting a call that the peer cancelled.
            raise StreamLost("CANCELLED") from None
        if isinstance(message, pb.SupervisorMessage):
            return message
        raise StreamLost("the supervisor ended the stream")

    def _take(self, message: pb.SupervisorMessage, on_welcome: Callable[[], None]) -> None:
        match message.WhichOneof("message"):
            case "welcome":
                self._follow(message.welcome.heartbeat_seconds)
                on_welcome()
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
                # A heartbeat, or what a later supervisor says: a sign of life.
                pass

    def _follow(self, heartbeat: float) -> None:
        if _SHORTEST_HEARTBEAT <= heartbeat <= _LONGEST_HEARTBEAT:
            self._heartbeat = heartbeat
            # Whoever waits for the old one must not wait so long.
            self._outbox.wake()


def _asked_to_end() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
