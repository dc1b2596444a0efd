"""An agent on a node whose clock is stepped while it runs."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from reclaim.v1 import reclaim_pb2 as pb

from simulator.cloud.dialects import METADATA_URLS, SimulatedCloud, termination_time
from simulator.cloud.metadata import MetadataServer
from simulator.cloud.trace import Node
from tests.node_agent.agent_process import agent
from tests.node_agent.fake_supervisor import FakeAgentService, fake_supervisor
from tests.testkit.faketime import SteppedClock
from tests.testkit.waiting import until

NODE = Node("n1")
LEAD = 300.0
WITHIN = 20.0
BOTH = [SimulatedCloud.ALIYUN, SimulatedCloud.AWS]


@dataclass(frozen=True, slots=True)
class ClockScene:
    """An agent that has said hello, and all that it asks."""

    supervisor: FakeAgentService
    clouds: dict[SimulatedCloud, MetadataServer]
    file: Path
    clock: SteppedClock

    def heard(self) -> dict[str, float]:
        # An agent that learns more about its machine says hello again to this supervisor, on another stream.
        streams = [stream for stream in self.supervisor.streams if stream.messages]
        said = [each for stream in streams for each in (*stream.hello.notices, *stream.notices)]
        active = [each for each in said if each.announcement == pb.ANNOUNCEMENT_ACTIVE]
        return {report.source: report.seconds_left for report in reversed(active)}


@pytest_asyncio.fixture
async def scene(tmp_path: Path, faketime: Path) -> AsyncIterator[ClockScene]:
    """An agent of both clouds and a file, on a node whose clock is right so far."""
    clock = SteppedClock(faketime, tmp_path / "clock")
    clock.step(0)
    (tmp_path / "token").write_text("secret", encoding="ascii")
    async with AsyncExitStack() as stack:
        supervisor = await stack.enter_async_context(fake_supervisor())
        supervisor.heartbeat = 5.0
        clouds = {cloud: MetadataServer(cloud=cloud) for cloud in BOTH}
        for server in clouds.values():
            await server.start()
            stack.push_async_callback(server.stop)
            server.add(NODE)
        environ = {
            **clock.variables,
            **{METADATA_URLS[cloud]: server.url for cloud, server in clouds.items()},
            "NODE_AGENT_NODE_NAME": NODE,
            "NODE_AGENT_NODE_UID": "machine-1",
            "NODE_AGENT_SUPERVISOR": f"127.0.0.1:{supervisor.port}",
            "NODE_AGENT_TOKEN_FILE": str(tmp_path / "token"),
            "NODE_AGENT_SOURCES": "aliyun,aws,file",
            "NODE_AGENT_FILE_PATH": str(tmp_path / "reclaim"),
            "NODE_AGENT_POLL_SECONDS": "0.1",
        }
        await stack.enter_async_context(agent(environ))
        await until(lambda: supervisor.streams and supervisor.streams[0].messages)
        yield ClockScene(supervisor, clouds, tmp_path / "reclaim", clock)


@pytest.mark.parametrize("step", [-2 * 86400.0, 7200.0])
async def test_leads_are_right_after_a_step(scene: ClockScene, step: float) -> None:
    """The clouds' by their own Date; the file's by the clock of now, which wrote it."""
    scene.clock.step(step)
    for server in scene.clouds.values():
        server.notice(NODE, time.time() + LEAD)
    written = scene.file.with_suffix(".new")
    written.write_text(termination_time(time.time() + step + LEAD), encoding="ascii")
    written.replace(scene.file)
    await until(lambda: len(scene.heard()) == len(BOTH) + 1)
    # Announced instants and Dates have whole seconds, and the agent may be slow to ask.
    assert {source: LEAD - WITHIN < left < LEAD + 2 for source, left in scene.heard().items()} == {
        "aliyun": True,
        "aws": True,
        "file": True,
    }, scene.heard()
