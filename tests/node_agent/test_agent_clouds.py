"""Every cloud's source against a metadata service that really misbehaves."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from node_agent.discovery import SourceFactory
from node_agent.notices import Answer, Clear, Noticed, NoticeSource, SourceUnavailable
from node_agent.settings import SourceKind, load
from servicekit.clock import Clock
from simulator.cloud.dialects import METADATA_URLS, SimulatedCloud
from simulator.cloud.faults import MetadataFault
from simulator.cloud.metadata import AnswerMode, MetadataServer
from simulator.cloud.trace import Node
from tests.node_agent.test_agent_settings import LEAST

NODE = Node("pool_7")
# Seconds: what a fault that lasts for ever costs a test.
PATIENCE = 0.5
TOKENLESS = {SimulatedCloud.AZURE, SimulatedCloud.GCP, SimulatedCloud.TENCENT}


@dataclass
class CloudScene:
    """A source and the service that it asks."""

    server: MetadataServer
    source: NoticeSource

    async def poll(self) -> Answer | None:
        """The answer of one poll; None where there is none."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await self.source.poll()
        except (SourceUnavailable, TimeoutError):
            return None


@asynccontextmanager
async def scene(
    cloud: SimulatedCloud, mode: AnswerMode = AnswerMode.HARDENED, *, idle: bool = False
) -> AsyncIterator[CloudScene]:
    server = MetadataServer(mode, cloud=cloud)
    await server.start()
    server.add(NODE)
    server.add(Node("pool_8"))
    settings = load(
        LEAST | {METADATA_URLS[cloud]: server.url_of(NODE), "NODE_AGENT_AZURE_ACKNOWLEDGE": str(idle).lower()}
    )
    try:
        async with SourceFactory(settings, Clock(), lambda: True).source(SourceKind(cloud)) as source:
            await source.identify()
            yield CloudScene(server, source)
    finally:
        await server.stop()


def hides(cloud: SimulatedCloud, fault: MetadataFault) -> bool:
    return fault.hides_metadata and not (fault is MetadataFault.NO_TOKENS and cloud in TOKENLESS)


@pytest.mark.parametrize("fault", list(MetadataFault))
@pytest.mark.parametrize("cloud", list(SimulatedCloud))
async def test_no_fault_announces_or_clears_anything(cloud: SimulatedCloud, fault: MetadataFault) -> None:
    """While nothing is announced and while something is, what the fault hides is unknown; afterwards it is there."""
    async with scene(cloud) as one:
        assert await one.poll() == Clear()
        await one.server.set_fault(fault)
        assert await one.poll() == (None if hides(cloud, fault) else Clear())
        one.server.notice(NODE, time.time() + 100.0)
        found = await one.poll()
        assert found is None if hides(cloud, fault) else isinstance(found, Noticed)
        await one.server.set_fault(None)
        # The service may have asked to wait.
        while (found := await one.poll()) is None:  # noqa: ASYNC110 - the service tells nobody when
            await asyncio.sleep(0.05)
        assert isinstance(found, Noticed)
        one.server.withdraw(NODE)
        assert await one.poll() == Clear()


@pytest.mark.parametrize("cloud", list(SimulatedCloud))
async def test_a_notice_leaves_the_time_that_the_cloud_announced(cloud: SimulatedCloud) -> None:
    """GCP names no instant, but gives 30 s."""
    async with scene(cloud) as one:
        one.server.notice(NODE, time.time() + 100.0)
        found = await one.poll()
        assert isinstance(found, Noticed)
        assert found.seconds_left == pytest.approx(30.0 if cloud is SimulatedCloud.GCP else 100.0, abs=15.0)


@pytest.mark.parametrize("cloud", list(SimulatedCloud))
async def test_another_nodes_notice_is_not_this_ones(cloud: SimulatedCloud) -> None:
    async with scene(cloud) as one:
        one.server.notice(Node("pool_8"), time.time() + 100.0)
        assert await one.poll() == Clear()


@pytest.mark.parametrize("idle", [False, True])
async def test_azure_starts_an_event_that_is_acknowledged(idle: bool) -> None:  # noqa: FBT001 - a table's column
    """Then it cannot be called off any more; without the setting nothing is acknowledged."""
    async with scene(SimulatedCloud.AZURE, idle=idle) as one:
        one.server.notice(NODE, time.time() + 100.0)
        assert isinstance(await one.poll(), Noticed)
        assert one.server.acknowledged(NODE) is idle
        found = await one.poll()
        assert isinstance(found, Noticed)
        assert found.cancellable is not idle
