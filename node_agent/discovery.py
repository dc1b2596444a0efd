"""Makes the sources that the settings name. For `auto`, finds out on which cloud this node is.

The node's provider id decides where it names a cloud. Elsewhere every cloud's metadata service is asked for something
that only this cloud answers: several share one address, and other software may answer there.
"""

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import structlog

from node_agent import notices
from node_agent.node import NodeObject, ThisNode, cloud_of
from node_agent.outbox import NoticeOutbox
from node_agent.settings import AgentSettings, SourceKind
from node_agent.sources.aws import AwsSource
from node_agent.sources.azure import AzureSource
from node_agent.sources.file import FileSource
from node_agent.sources.gcp import GcpSource
from node_agent.sources.termination_time import ALIYUN, TENCENT, VOLCENGINE, TerminationTimeSource
from node_agent.watchdog import Watchdog
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.faults import Fault

CLOUDS = tuple(kind for kind in SourceKind if kind not in {SourceKind.AUTO, SourceKind.FILE})
NO_CLOUD = notices.SourceName("none")

# Seconds for one question; from a black hole there is no answer at all.
_PROBE_SECONDS = 2.0
# Seconds between two rounds, until it is known that there is no cloud, and from then on.
_PAUSE, _LONG_PAUSE = 1.0, 30.0
# Rounds in a row without a cloud: 5 s on a machine that refuses, 15 s in a black hole. One time-out proves nothing.
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class SourceFactory:
    """Makes sources, each of which is closed at the end of its context.

    Attributes:
        settings: Addresses and modes.
        clock: For the sources.
        may_start: Whether an event of an Azure VM may start now; called only where the settings ask to acknowledge.
            None: nobody can tell, so none is acknowledged.
    """

    settings: AgentSettings
    clock: Clock
    may_start: Callable[[], bool] | None

    @contextlib.asynccontextmanager
    async def source(self, kind: SourceKind) -> AsyncIterator[notices.NoticeSource]:
        """Makes any source but `auto`, which chooses among `clouds`."""
        if kind is SourceKind.FILE and self.settings.file_path is not None:
            yield FileSource(self.settings.file_path, self.clock)
            return
        cloud = self._cloud(kind)
        try:
            yield cloud
        finally:
            await cloud.close()

    @contextlib.asynccontextmanager
    async def clouds(self) -> AsyncIterator[list[notices.CloudSource]]:
        """Makes the sources of all clouds."""
        clouds = [self._cloud(kind) for kind in CLOUDS]
        try:
            yield clouds
        finally:
            for cloud in clouds:
                await cloud.close()

    def _cloud(self, kind: SourceKind) -> notices.CloudSource:
        given, clock = self.settings, self.clock
        match kind:
            case SourceKind.ALIYUN:
                return TerminationTimeSource(ALIYUN, given.metadata_url, clock, given.metadata_mode)
            case SourceKind.AWS:
                return AwsSource(given.aws_metadata_url, clock)
            case SourceKind.AZURE:
                may_start = self.may_start if given.azure_acknowledge else None
                return AzureSource(given.azure_metadata_url, clock, may_start)
            case SourceKind.GCP:
                return GcpSource(given.gcp_metadata_url, clock)
            case SourceKind.TENCENT:
                return TerminationTimeSource(TENCENT, given.tencent_metadata_url, clock)
            case SourceKind.VOLCENGINE:
                mode = given.volcengine_metadata_mode
                return TerminationTimeSource(VOLCENGINE, given.volcengine_metadata_url, clock, mode)
            case _:
                raise ValueError(f"source {kind} is not set up")


class _ProbeOutcome(enum.Enum):
    FOUND = enum.auto()
    ABSENT = enum.auto()
    # Something is there that does not answer now.
    BUSY = enum.auto()


class CloudDiscovery:
    """Finds the cloud of this node by asking the metadata services of all clouds.

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
        spot: NodeObject,
        clouds: Sequence[notices.CloudSource],
        outbox: NoticeOutbox,
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

    async def run(self) -> notices.CloudSource:
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

    async def once(self) -> notices.CloudSource | None:
        """Asks each service once; returns the source of the node's cloud if it is known now.

        All clouds are asked at once, and the first one that is recognized ends the round.
        """
        named = cloud_of(self._spot.provider_id)
        if named is not None:
            return next(cloud for cloud in self._clouds if cloud.name == named)
        busy = ""
        asking = [asyncio.create_task(self._ask(cloud)) for cloud in self._clouds]
        try:
            for next_answer in asyncio.as_completed(asking):
                cloud, outcome, reason = await next_answer
                if outcome is _ProbeOutcome.FOUND:
                    return cloud
                if outcome is _ProbeOutcome.BUSY:
                    busy = f"{cloud.name}: {reason}"
        finally:
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
        self._count_round(busy)
        return None

    async def _ask(self, cloud: notices.CloudSource) -> tuple[notices.CloudSource, _ProbeOutcome, str]:
        found = False
        try:
            with self._bulkhead.guard(
                "discovery", cloud.name, passes=(notices.SourceUnavailable, TimeoutError)
            ) as attempt:
                async with asyncio.timeout(_PROBE_SECONDS):
                    found = await cloud.recognize()
        except notices.ServiceBusy as error:
            return cloud, _ProbeOutcome.BUSY, str(error)
        except (notices.SourceUnavailable, TimeoutError) as error:
            return cloud, _ProbeOutcome.ABSENT, str(error)
        if attempt.failed:  # Its answer is not known, so it is not known that there is no cloud.
            return cloud, _ProbeOutcome.BUSY, "internal error, see the agent's log"
        return cloud, _ProbeOutcome.FOUND if found else _ProbeOutcome.ABSENT, ""

    def _count_round(self, busy: str) -> None:
        """Counts a round without a cloud; after enough of them in a row, reports that there is none."""
        reason = busy or ("" if self._spot.known else "the Node object is not known yet")
        if reason:
            self._rounds = 0
            self._fault.failed(reason)
            return
        self._fault.recovered()
        self._rounds += 1
        if self._rounds == _ROUNDS:
            detail = "no cloud's metadata service answers on this node, so nothing is announced"
            structlog.get_logger().info("cloud.none", rounds=_ROUNDS)
            self._outbox.set_status(notices.ReportedSource(NO_CLOUD, notices.PollResult.NOT_SPOT, detail=detail))
            if self._node.subject is None:
                self._node.resolve(notices.NodeIdentity(self._spot.uid or self._node.name))
