"""The source `auto`: which cloud a node is on, and that there is none."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest
import pytest_asyncio
from aiohttp import web

from node_agent.discovery import CLOUDS, CloudDiscovery, SourceFactory
from node_agent.node import NodeObject, ThisNode, cloud_of
from node_agent.notices import (
    Answer,
    Clear,
    CloudSource,
    NodeIdentity,
    PollResult,
    ServiceBusy,
    SourceName,
    SourceUnavailable,
)
from node_agent.outbox import NoticeOutbox
from node_agent.settings import AgentSettings, load
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from simulator.cloud.dialects import METADATA_URLS, SimulatedCloud
from simulator.cloud.faults import MetadataFault
from simulator.cloud.metadata import AnswerMode, MetadataServer
from simulator.cloud.trace import Node
from tests.node_agent.test_agent_settings import LEAST
from tests.testkit.waiting import until

NODE = Node("n1")
ROUNDS = 5


@dataclass
class ScriptedCloud:
    """A cloud whose service says what a test has it say."""

    name: SourceName
    says: bool | Exception = False
    asked: int = 0
    hangs: bool = False

    async def recognize(self) -> bool:
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        if isinstance(self.says, Exception):
            raise self.says
        return self.says

    async def identify(self) -> NodeIdentity | None:
        return None

    async def poll(self) -> Answer:
        return Clear()

    async def close(self) -> None:
        """Nothing is open."""


@dataclass
class DiscoveryScene:
    """A node and two clouds."""

    here: NodeObject = field(default_factory=partial(NodeObject, known=True))
    aws: ScriptedCloud = field(default_factory=lambda: ScriptedCloud(SourceName("aws")))
    gcp: ScriptedCloud = field(default_factory=lambda: ScriptedCloud(SourceName("gcp")))
    outbox: NoticeOutbox = field(default_factory=lambda: NoticeOutbox(10))
    node: ThisNode = field(default_factory=lambda: ThisNode(NODE, ""))

    def __post_init__(self) -> None:
        self.discovery = CloudDiscovery(
            self.node, self.here, [self.aws, self.gcp], self.outbox, Clock(), Bulkhead(Clock())
        )

    async def rounds(self, count: int) -> list[CloudSource | None]:
        return [await self.discovery.once() for _ in range(count)]

    @property
    def states(self) -> Mapping[str, PollResult]:
        return {status.source: status.state for status in self.outbox.statuses()}


@pytest_asyncio.fixture
async def scene() -> DiscoveryScene:
    return DiscoveryScene()


async def test_the_cloud_that_is_recognized_is_the_nodes(scene: DiscoveryScene) -> None:
    scene.gcp.says = True
    assert await scene.rounds(1) == [scene.gcp]
    assert not scene.outbox.statuses()


async def test_the_first_answer_is_enough(scene: DiscoveryScene) -> None:
    """Another cloud's address may be a black hole; nobody waits for it."""
    scene.aws.hangs = True
    scene.gcp.says = True
    assert await scene.rounds(1) == [scene.gcp]


async def test_without_a_cloud_the_node_has_nothing_announced(scene: DiscoveryScene) -> None:
    """After five rounds: one failure proves nothing. Then the node takes workers, known by its name."""
    scene.aws.says = SourceUnavailable("no answer: TimeoutError")
    await scene.rounds(ROUNDS - 1)
    assert (scene.states, scene.node.subject) == ({}, None)
    await scene.rounds(1)
    assert scene.states == {"none": PollResult.NOT_SPOT}
    assert scene.node.subject is not None
    assert scene.node.subject.uid == NODE


async def test_a_node_of_a_cluster_is_known_by_its_uid(scene: DiscoveryScene) -> None:
    scene.here.uid = "node-uid"
    await scene.rounds(ROUNDS)
    assert scene.node.subject is not None
    assert scene.node.subject.uid == "node-uid"


async def test_a_cloud_that_answers_later_is_found(scene: DiscoveryScene) -> None:
    """Also after it was concluded that there is none."""
    await scene.rounds(ROUNDS + 3)
    scene.aws.says = True
    assert await scene.rounds(1) == [scene.aws]


async def test_a_busy_service_proves_nothing(scene: DiscoveryScene) -> None:
    """Something is there that may be a cloud's: the rounds are counted anew."""
    await scene.rounds(ROUNDS - 1)
    scene.aws.says = ServiceBusy("no session token: HTTP 503")
    await scene.rounds(3)
    scene.aws.says = False
    await scene.rounds(ROUNDS - 1)
    assert scene.states == {}
    await scene.rounds(1)
    assert scene.states == {"none": PollResult.NOT_SPOT}


async def test_while_the_node_object_is_unknown_nothing_is_concluded(scene: DiscoveryScene) -> None:
    """Its provider id may name a cloud that does not answer now."""
    scene.here.known = False
    await scene.rounds(3 * ROUNDS)
    assert scene.states == {}
    scene.here.known = True
    await scene.rounds(ROUNDS)
    assert scene.states == {"none": PollResult.NOT_SPOT}


async def test_the_provider_id_decides(scene: DiscoveryScene) -> None:
    """The node is on that cloud, whether its service answers or not, and whoever else answers."""
    scene.here.provider_id = "gce://project/us-central1-a/n1"
    scene.aws.says = True
    assert await scene.rounds(1) == [scene.gcp]
    assert scene.aws.asked == scene.gcp.asked == 0


async def test_it_looks_until_it_has_found_one(scene: DiscoveryScene) -> None:
    task = asyncio.create_task(scene.discovery.run())
    await until(lambda: scene.aws.asked == 2)
    scene.aws.says = True
    assert await task is scene.aws
    assert scene.discovery.watchdog.alive


@pytest.mark.parametrize(
    ("provider_id", "cloud"),
    [
        ("aws:///us-east-1a/i-0abc", "aws"),
        ("gce://project/us-central1-a/n1", "gcp"),
        ("azure:///subscriptions/1/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/n1", "azure"),
        ("qcloud:///100003/ins-3ven36lk", "tencent"),
        ("cn-beijing.i-2ze0a1b2c3d4", "aliyun"),
        ("alicloud://cn-beijing.i-2ze0a1b2c3d4", "aliyun"),
        ("us-west-1.i-2ze0a1b2c3d4", "aliyun"),
        ("", None),
        ("kind://docker/kind/kind-worker", None),
        ("k3s://n1", None),
        ("openstack:///0b5f8f1e", None),
        ("vsphere://4230", None),
        ("ocid1.instance.oc1.iad.abc", None),
        ("cn-beijing.i-2ze0\nx", None),
        ("aws", None),
    ],
)
def test_what_a_provider_id_tells(provider_id: str, cloud: str | None) -> None:
    assert cloud_of(provider_id) == cloud


@asynccontextmanager
async def serving(cloud: SimulatedCloud, mode: AnswerMode = AnswerMode.PLAIN) -> AsyncIterator[MetadataServer]:
    server = MetadataServer(mode, cloud=cloud)
    await server.start()
    server.add(NODE)
    try:
        yield server
    finally:
        await server.stop()


def at_one_address(url: str) -> AgentSettings:
    """The settings of an agent that would find every cloud's service there."""
    return load(LEAST | dict.fromkeys(METADATA_URLS.values(), url))


async def found_at(url: str) -> tuple[str | None, NoticeOutbox]:
    """What an agent finds that asks for every cloud at this one address."""
    async with AsyncExitStack() as stack:
        clouds = await stack.enter_async_context(SourceFactory(at_one_address(url), Clock(), lambda: False).clouds())
        outbox = NoticeOutbox(10)
        discovery = CloudDiscovery(
            ThisNode(NODE, ""), NodeObject(known=True), clouds, outbox, Clock(), Bulkhead(Clock())
        )
        rounds = [await discovery.once() for _ in range(ROUNDS)]
        return (rounds[0].name if rounds[0] else None), outbox


@pytest.mark.parametrize("mode", list(AnswerMode))
@pytest.mark.parametrize("cloud", sorted(set(SimulatedCloud) - {SimulatedCloud.ALIYUN, SimulatedCloud.VOLCENGINE}))
async def test_each_service_is_recognized_by_its_own_source_alone(cloud: SimulatedCloud, mode: AnswerMode) -> None:
    """Although all are looked for at the same address; those of two clouds have an address of their own."""
    async with serving(cloud, mode) as server:
        assert (await found_at(server.url))[0] == cloud


@pytest.mark.parametrize("mode", list(AnswerMode))
@pytest.mark.parametrize("cloud", [SimulatedCloud.ALIYUN, SimulatedCloud.VOLCENGINE])
async def test_a_service_with_its_own_address_is_recognized_there(cloud: SimulatedCloud, mode: AnswerMode) -> None:
    async with serving(cloud, mode) as server, serving(SimulatedCloud.AWS) as other:
        other.remove(NODE)
        urls = dict.fromkeys(METADATA_URLS.values(), other.url) | {METADATA_URLS[cloud]: server.url}
        async with SourceFactory(load(LEAST | urls), Clock(), lambda: False).clouds() as clouds:
            discovery = CloudDiscovery(
                ThisNode(NODE, ""), NodeObject(known=True), clouds, NoticeOutbox(10), Clock(), Bulkhead(Clock())
            )
            found = await discovery.once()
            assert found is not None
            assert found.name == SourceName(cloud)


OPENSTACK = {
    "/latest/meta-data/instance-id": "i-0000002a",
    "/latest/meta-data/placement/availability-zone": "nova",
}


@asynccontextmanager
async def foreign(items: Mapping[str, str], status: int) -> AsyncIterator[str]:
    async def handle(request: web.Request) -> web.Response:
        if request.path in items and request.method == "GET":
            return web.Response(text=items[request.path])
        return web.Response(status=status, text="<html>log in</html>")

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("status", [200, 302, 404, 403])
async def test_a_foreign_service_is_no_cloud(status: int) -> None:
    """A page that is served for everything, a redirect to a log-in, a refusal: the node has no cloud."""
    async with foreign({}, status) as url:
        found, outbox = await found_at(url)
        assert found is None
        assert [each.state for each in outbox.statuses()] == [PollResult.NOT_SPOT]


async def test_another_ec2_dialect_is_not_aws() -> None:
    """OpenStack answers some of EC2's requests; it has no tokens and another domain."""
    async with (
        foreign(OPENSTACK, 404) as url,
        SourceFactory(at_one_address(url), Clock(), lambda: False).clouds() as clouds,
    ):
        aws = next(cloud for cloud in clouds if cloud.name == "aws")
        with pytest.raises(SourceUnavailable, match="token"):
            await aws.recognize()


@pytest.mark.parametrize("fault", [MetadataFault.BROKEN, MetadataFault.THROTTLED])
async def test_a_service_that_cannot_answer_leaves_the_node_unknown(fault: MetadataFault) -> None:
    async with serving(SimulatedCloud.AWS) as server:
        await server.set_fault(fault)
        found, outbox = await found_at(server.url)
        assert (found, list(outbox.statuses())) == (None, [])


def test_every_cloud_is_looked_for() -> None:
    assert {kind.value for kind in CLOUDS} == {cloud.value for cloud in SimulatedCloud}
