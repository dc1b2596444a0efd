"""Keeps a stream to the supervisor open."""

import asyncio
from dataclasses import asdict

import structlog
from reclaim.v1.reclaim_pb2_grpc import ReclaimServiceStub

from node_agent.channel import Endpoint, NotConfigured
from node_agent.identity import ThisNode
from node_agent.notices import Subject
from node_agent.outbox import Outbox
from node_agent.stream import HelloOutdated, SessionSuperseded, Stream, StreamLost
from node_agent.watchdog import Watchdog
from node_agent.wire import AgentIdentity
from servicekit.backoff import ReconnectBackoff
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.faults import Fault

_FIRST_DELAY = 0.1
_MAX_DELAY = 5.0
_IDENTITY_SECONDS = 1.0


class AgentReplaced(Exception):  # noqa: N818 - it names what happened
    """A newer agent reports for this node: this one ends."""


class Uplink:
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
        welcomed: Whether the supervisor has welcomed this agent on the present stream.
        welcomes: The number of streams on which it has.
    """

    def __init__(  # noqa: PLR0913 - the wiring list passes them by name
        self,
        *,
        endpoint: Endpoint,
        node: ThisNode,
        outbox: Outbox,
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
        self._ever_welcomed = False
        self._backoff = ReconnectBackoff(_FIRST_DELAY, _MAX_DELAY, clock)
        self._fault = Fault("supervisor", clock)
        self.watchdog = Watchdog(clock)
        self.started_at = clock.monotonic()
        self.welcomed = False
        self.welcomes = 0

    @property
    def trouble(self) -> str | None:
        """Why there is no stream, for people; None while there is one, and before the first attempt."""
        return self._fault.reason

    async def run(self) -> None:
        """Root task: keeps a stream open. When cancelled, it says goodbye.

        Raises:
            AgentReplaced: A newer agent has taken over.
        """
        node = await self._identity()
        while True:
            started = self._clock.monotonic()
            with self._bulkhead.guard("uplink", passes=AgentReplaced) as attempt:
                await self._connect_once(node)
            if attempt.failed:
                self._fault.failed("internal error, see the agent's log")
            # The backoff also grows for a supervisor that welcomes the agent and drops it at once.
            if self._clock.monotonic() - started > _MAX_DELAY:
                self._backoff.reset()
            pause = max(self._backoff.next(), attempt.retry_in or 0.0)
            self.watchdog.feed(pause)
            await asyncio.sleep(pause)

    async def _identity(self) -> Subject:
        while True:
            self.watchdog.feed(_IDENTITY_SECONDS)
            node = await self._node.wait_subject(within=_IDENTITY_SECONDS)
            if node is not None:
                # A hello that describes the machine saves another one. Where the uid is set, the first poll is late.
                await self._node.wait_described(within=_IDENTITY_SECONDS)
                return node

    async def _connect_once(self, node: Subject) -> None:
        try:
            await self._run_stream(node)
        except HelloOutdated:
            structlog.get_logger().info("machine.updated", machine=asdict(self._node.machine))
        except StreamLost as error:
            self._fault.failed(self._endpoint.explain(str(error)))
        except NotConfigured as error:
            self._fault.failed(str(error))
        except SessionSuperseded as superseded:
            if self._ever_welcomed:
                raise AgentReplaced(str(superseded)) from superseded
            # Never welcomed: the clock has gone back since an earlier run of this very agent.
            self._session = superseded.session + 1
            structlog.get_logger().warning("session.raised", session=self._session, reason=str(superseded))
        finally:
            self.welcomed = False

    async def _run_stream(self, node: Subject) -> None:
        async with self._endpoint.channel() as channel:
            call = ReclaimServiceStub(channel).Connect(None, metadata=self._endpoint.metadata())
            stream = Stream(call, self._outbox, self._clock, self._heartbeat, self.watchdog, self._bulkhead)
            self._streams += 1
            speaker = AgentIdentity(node, self._session, self._version, self._node.machine, self._streams)
            await stream.run(speaker, self._on_welcome, lambda: self._node.machine)

    def _on_welcome(self) -> None:
        self.welcomed = self._ever_welcomed = True
        self.welcomes += 1
        self._fault.recovered()
        structlog.get_logger().info("supervisor.welcomed", session=self._session)
