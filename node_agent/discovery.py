"""Source `auto`: finds out on which cloud this node is.

The node's provider id decides where it names a cloud. Elsewhere every cloud's metadata service is asked for something
that only this cloud answers: several share one address, and other software may answer there.
"""

import asyncio
import enum
from collections.abc import Sequence

import structlog

from node_agent.identity import ThisNode
from node_agent.notices import SourceName, SourceState, SourceStatus
from node_agent.outbox import Outbox
from node_agent.provider import cloud_of
from node_agent.sources import CloudSource, NodeIdentity, ServiceBusy, SourceUnavailable
from node_agent.spot import Spot
from node_agent.watchdog import Watchdog
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.faults import Fault

NO_CLOUD = SourceName("none")

# Seconds for one question; from a black hole there is no answer at all.
_PROBE_SECONDS = 2.0
# Seconds between two rounds, until it is known that there is no cloud, and from then on.
_PAUSE, _LONG_PAUSE = 1.0, 30.0
# Rounds in a row without a cloud: 5 s on a machine that refuses, 15 s in a black hole. One time-out proves nothing.
_ROUNDS = 5


class _Outcome(enum.Enum):
    FOUND = enum.auto()
    ABSENT = enum.auto()
    # Something is there that does not answer now.
    BUSY = enum.auto()


class Discovery:
    """Looks for the node's cloud.

    While it looks, no source reports, so the node is unknown. Where several rounds have found no cloud, the source
    `none` reports that there is nothing to announce, and the search goes on seldom.

    Args:
        node: Where there is no cloud, it is known by the uid of its Node object, or else by its name.
        spot: Knows the node's provider id.
        clouds: The sources to choose from.
        outbox: Takes the state of the source `none`.
        clock: Monotonic instants.
        bulkhead: Keeps what nobody foresaw with the cloud that is asked.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - a part of the wiring list
        self,
        node: ThisNode,
        spot: Spot,
        clouds: Sequence[CloudSource],
        outbox: Outbox,
        clock: Clock,
        bulkhead: Bulkhead,
    ) -> None:
        self._bulkhead = bulkhead
        self._node = node
        self._spot = spot
        self._clouds = clouds
        self._outbox = outbox
        self._rounds = 0
        self._fault = Fault("search for the node's cloud", clock)
        self.watchdog = Watchdog(clock)

    async def run(self) -> CloudSource:
        """Returns the source of the cloud once it is known."""
        await self._spot.wait_known()
        while True:
            with self._bulkhead.guard("discovery"):
                cloud = await self.once()
                if cloud is not None:
                    structlog.get_logger().info("cloud.found", source=cloud.name, provider_id=self._spot.provider_id)
                    return cloud
            pause = _LONG_PAUSE if self._rounds >= _ROUNDS else _PAUSE
            self.watchdog.feed(pause + _PROBE_SECONDS)
            await asyncio.sleep(pause)

    async def once(self) -> CloudSource | None:
        """Looks once; returns the source of the node's cloud if it is known now."""
        named = cloud_of(self._spot.provider_id)
        if named is not None:
            return next(cloud for cloud in self._clouds if cloud.name == named)
        return await self._ask_all()

    async def _ask_all(self) -> CloudSource | None:
        """Asks all at once: the first one that is recognized ends the round."""
        busy = ""
        asking = [asyncio.create_task(self._ask(cloud)) for cloud in self._clouds]
        try:
            for next_answer in asyncio.as_completed(asking):
                cloud, outcome, reason = await next_answer
                if outcome is _Outcome.FOUND:
                    return cloud
                if outcome is _Outcome.BUSY:
                    busy = f"{cloud.name}: {reason}"
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        self._count_round(busy)
        return None

    async def _ask(self, cloud: CloudSource) -> tuple[CloudSource, _Outcome, str]:
        found = False
        try:
            with self._bulkhead.guard("discovery", cloud.name, passes=(SourceUnavailable, TimeoutError)) as attempt:
                async with asyncio.timeout(_PROBE_SECONDS):
                    found = await cloud.recognize()
        except ServiceBusy as error:
            return cloud, _Outcome.BUSY, str(error)
        except (SourceUnavailable, TimeoutError) as error:
            return cloud, _Outcome.ABSENT, str(error)
        if attempt.failed:  # Its answer is not known, so it is not known that there is no cloud.
            return cloud, _Outcome.BUSY, "internal error, see the agent's log"
        return cloud, _Outcome.FOUND if found else _Outcome.ABSENT, ""

    def _count_round(self, busy: str) -> None:
        reason = busy or ("" if self._spot.known else "the Node object is not known yet")
        if reason:
            self._rounds = 0
            self._fault.failed(reason)
            return
        self._fault.recovered()
        self._rounds += 1
        if self._rounds == _ROUNDS:
            self._report_no_cloud()

    def _report_no_cloud(self) -> None:
        detail = "no cloud's metadata service answers on this node, so nothing is announced"
        structlog.get_logger().info("cloud.none", rounds=_ROUNDS)
        self._outbox.set_status(SourceStatus(NO_CLOUD, SourceState.NOT_SPOT, detail=detail))
        if self._node.subject is None:
            self._node.resolve(NodeIdentity(self._spot.uid or self._node.name))
