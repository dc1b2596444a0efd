"""A real agent that finds its cloud: a whole notice with each cloud's metadata, and a node without a cloud."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from reclaim.v1 import reclaim_pb2 as pb

from simulator.cloud.dialects import METADATA_URLS, SimulatedCloud
from simulator.cloud.metadata import AnswerMode, MetadataServer
from simulator.cloud.trace import Node
from tests.node_agent.agent_process import agent, probe
from tests.node_agent.fake_supervisor import FakeAgentService, HeardStream, fake_supervisor
from tests.testkit.waiting import until

NODE = Node("n1")
LEAD = 100.0
OWN_ADDRESS = {SimulatedCloud.ALIYUN, SimulatedCloud.VOLCENGINE}
# Nobody listens there.
NOWHERE = "http://127.0.0.1:9"


def urls(cloud: SimulatedCloud, url: str) -> Mapping[str, str]:
    """The address of each service: the same one, but for the clouds that have one of their own."""
    shared = [each for each in SimulatedCloud if each is cloud or {each, cloud}.isdisjoint(OWN_ADDRESS)]
    return {METADATA_URLS[each]: url if each in shared else NOWHERE for each in SimulatedCloud}


@asynccontextmanager
async def scene(
    directory: Path, addresses: Mapping[str, str]
) -> AsyncIterator[tuple[FakeAgentService, Mapping[str, str]]]:
    (directory / "token").write_text("secret")
    async with fake_supervisor() as supervisor:
        yield (
            supervisor,
            {
                "NODE_AGENT_NODE_NAME": NODE,
                "NODE_AGENT_SUPERVISOR": f"127.0.0.1:{supervisor.port}",
                "NODE_AGENT_TOKEN_FILE": str(directory / "token"),
                "NODE_AGENT_PROBE_ADDRESS": "127.0.0.1:0",
                "NODE_AGENT_POLL_SECONDS": "0.1",
                **addresses,
            },
        )


def said(stream: HeardStream) -> list[pb.NoticeReport]:
    return [*stream.hello.notices, *stream.notices]


@pytest.mark.parametrize(
    "mode",
    # Short runs ask each cloud without a token in test_agent_discovery.
    [AnswerMode.HARDENED, pytest.param(AnswerMode.PLAIN, marks=pytest.mark.long)],
)
@pytest.mark.parametrize("cloud", list(SimulatedCloud))
async def test_a_notice_of_each_cloud_arrives_and_is_withdrawn(
    cloud: SimulatedCloud, mode: AnswerMode, tmp_path: Path
) -> None:
    """With the default settings: the agent finds the cloud, describes the machine, and reports what is announced."""
    server = MetadataServer(mode, cloud=cloud)
    await server.start()
    server.add(NODE)
    try:
        async with scene(tmp_path, urls(cloud, server.url)) as (supervisor, environ), agent(environ) as running:
            await until(lambda: running.event("supervisor.welcomed"))
            (stream,) = supervisor.streams
            machine = stream.hello.machine
            assert machine.cloud == cloud.value
            assert all((machine.region, machine.zone, machine.instance_type))
            deadline = time.time() + LEAD
            server.notice(NODE, deadline)
            await until(lambda: any(each.announcement == pb.ANNOUNCEMENT_ACTIVE for each in said(stream)))
            report = said(stream)[-1]
            assert (report.source, report.subject.uid) == (cloud.value, stream.hello.node_uid)
            assert report.notice_class == pb.NOTICE_CLASS_SUDDEN
            if cloud is not SimulatedCloud.GCP:
                assert deadline - 1.0 <= report.deadline.seconds <= deadline
            server.withdraw(NODE)
            await until(lambda: said(stream)[-1].announcement == pb.ANNOUNCEMENT_WITHDRAWN)
            status, body = await probe(running, "/readyz")
            assert (status, set(body["detail"]["sources"])) == (200, {cloud.value})
            _, body = await probe(running, "/livez")
            assert set(body["detail"]["loops"]) == {f"source {cloud.value}", "uplink"}
    finally:
        await server.stop()


async def test_a_node_without_a_cloud_has_nothing_announced(tmp_path: Path) -> None:
    """It is known by its name, and its one source says that there is nothing to announce."""
    nowhere = dict.fromkeys(METADATA_URLS.values(), NOWHERE)
    async with scene(tmp_path, nowhere) as (supervisor, environ), agent(environ) as running:
        await until(lambda: running.event("supervisor.welcomed"))
        hello = supervisor.streams[0].hello
        assert hello.node_uid == NODE
        assert [(each.source, each.state) for each in hello.sources] == [("none", pb.SOURCE_STATE_NOT_SPOT)]
        assert hello.machine == pb.Machine()
        status, _ = await probe(running, "/readyz")
        assert status == 200
