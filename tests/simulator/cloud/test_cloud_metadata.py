import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import aiohttp
import pytest

from simulator.cloud.dialects import DIALECTS, SimulatedCloud, termination_time
from simulator.cloud.faults import MetadataFault
from simulator.cloud.metadata import AnswerMode, MetadataServer, UnknownNode
from simulator.cloud.trace import Node

NODE = Node("node1")
OTHER = Node("node2")
TERMINATION = "/latest/meta-data/instance/spot/termination-time"
INSTANCE_ID = "/latest/meta-data/instance-id"
TOKEN = "/latest/api/token"
TOKEN_HEADER = DIALECTS[SimulatedCloud.ALIYUN].token_header
TTL_HEADER = DIALECTS[SimulatedCloud.ALIYUN].ttl_header


class MetadataClient:
    """Asks one server as a node's agent would."""

    def __init__(self, server: MetadataServer, http: aiohttp.ClientSession) -> None:
        self.server = server
        self._http = http

    async def ask(
        self, path: str, node: Node = NODE, method: str = "GET", headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        async with self._http.request(method, self.server.url_of(node) + path, headers=headers) as answer:
            return answer.status, await answer.text()

    async def token(self, ttl: str = "60", node: Node = NODE) -> tuple[int, str]:
        return await self.ask(TOKEN, node, "PUT", {TTL_HEADER: ttl})


@asynccontextmanager
async def serving(
    mode: AnswerMode = AnswerMode.PLAIN,
    monotonic: Callable[[], float] = time.monotonic,
    cloud: SimulatedCloud = SimulatedCloud.ALIYUN,
) -> AsyncIterator[MetadataClient]:
    server = MetadataServer(mode, monotonic=monotonic, cloud=cloud)
    await server.start()
    server.add(NODE)
    server.add(OTHER)
    try:
        async with aiohttp.ClientSession() as http:
            yield MetadataClient(server, http)
    finally:
        await server.stop()


async def test_a_notice_is_shown_on_its_node_alone_until_it_is_withdrawn() -> None:
    """404 without a notice, 200 with the instant, 404 again once it is taken back."""
    async with serving() as client:
        assert (await client.ask(TERMINATION))[0] == 404
        client.server.notice(NODE, datetime(2015, 1, 5, 18, 2, 0, 999_000, tzinfo=UTC).timestamp())
        assert await client.ask(TERMINATION) == (200, "2015-01-05T18:02:00Z")
        assert (await client.ask(TERMINATION, OTHER))[0] == 404
        client.server.withdraw(NODE)
        assert (await client.ask(TERMINATION))[0] == 404


async def test_the_only_node_is_asked_as_by_itself() -> None:
    """With the paths of the link-local address; beside another node nobody can tell whose they are."""
    async with serving() as client, aiohttp.ClientSession() as http:
        assert (await _ask_at(http, client.server.url))[0] == 404
        client.server.remove(OTHER)
        assert (await _ask_at(http, client.server.url)) == await client.ask(INSTANCE_ID)


async def _ask_at(http: aiohttp.ClientSession, url: str) -> tuple[int, str]:
    async with http.get(f"{url}{INSTANCE_ID}") as answer:
        return answer.status, await answer.text()


def test_a_termination_time_never_promises_more_than_there_is() -> None:
    assert termination_time(1420480920.999) == "2015-01-05T18:02:00Z"


async def test_a_node_that_comes_back_is_another_instance() -> None:
    async with serving() as client:
        client.server.notice(NODE, 0.0)
        _, first = await client.ask(INSTANCE_ID)
        assert (await client.ask(INSTANCE_ID))[1] == first
        assert (await client.ask(TERMINATION))[0] == 200
        client.server.remove(NODE)
        assert (await client.ask(INSTANCE_ID))[0] == 404
        client.server.add(NODE)
        _, second = await client.ask(INSTANCE_ID)
        assert second != first
        assert client.server.poll_count(NODE) == 0
        assert (await client.ask(TERMINATION))[0] == 404
        assert client.server.poll_count(NODE) == 1


async def test_stable_items_are_served_and_others_are_not() -> None:
    """An agent learns what it runs on; an item that is not simulated is not there."""
    async with serving() as client:
        for item in ("instance-id", "region-id", "zone-id", "instance/instance-type"):
            status, text = await client.ask(f"/latest/meta-data/{item}")
            assert (status, bool(text)) == (200, True)
        assert (await client.ask("/latest/meta-data/hostname"))[0] == 404


async def test_a_forwarded_request_is_refused() -> None:
    """A proxy in between would let anybody ask: 403, with and without a token, for a token too."""
    async with serving() as client:
        forwarded = {"X-Forwarded-For": "10.0.0.1"}
        assert (await client.ask(INSTANCE_ID, headers=forwarded))[0] == 403
        assert (await client.ask(TOKEN, method="PUT", headers={**forwarded, TTL_HEADER: "60"}))[0] == 403


@pytest.mark.parametrize("ttl", ["0", "21601", "-1", "soon", ""])
async def test_a_lifetime_out_of_range_is_refused(ttl: str) -> None:
    async with serving() as client:
        assert (await client.token(ttl))[0] == 400


@pytest.mark.parametrize("ttl", ["1", "21600"])
async def test_a_lifetime_in_range_is_granted(ttl: str) -> None:
    async with serving() as client:
        assert (await client.token(ttl))[0] == 200


async def test_hardened_metadata_want_a_token_of_their_own_node() -> None:
    """Without one 403, with a wrong one or another node's 401, with the right one the item."""
    async with serving(AnswerMode.HARDENED) as client:
        _, token = await client.token()
        _, foreign = await client.token(node=OTHER)
        assert (await client.ask(INSTANCE_ID))[0] == 403
        assert (await client.ask(INSTANCE_ID, headers={TOKEN_HEADER: "made-up"}))[0] == 401
        assert (await client.ask(INSTANCE_ID, headers={TOKEN_HEADER: foreign}))[0] == 401
        assert (await client.ask(INSTANCE_ID, headers={TOKEN_HEADER: token}))[0] == 200


async def test_a_token_expires() -> None:
    now = 1000.0
    async with serving(AnswerMode.HARDENED, lambda: now) as client:
        _, token = await client.token("10")
        now = 1009.9
        assert (await client.ask(INSTANCE_ID, headers={TOKEN_HEADER: token}))[0] == 200
        now = 1010.0
        assert (await client.ask(INSTANCE_ID, headers={TOKEN_HEADER: token}))[0] == 401


async def test_a_node_that_is_not_there_cannot_be_noticed() -> None:
    """A scenario with a wrong name is told so instead of doing nothing."""
    server = MetadataServer()
    for act in (lambda: server.notice(NODE, 0.0), lambda: server.withdraw(NODE), lambda: server.poll_count(NODE)):
        with pytest.raises(UnknownNode, match="node1"):
            act()


async def test_the_other_cloud_wants_its_own_token_always() -> None:
    """401 without one; with one the items of that cloud, a notice as an action, and a warning while there is one."""
    async with serving(cloud=SimulatedCloud.AWS) as client:
        dialect = DIALECTS[SimulatedCloud.AWS]
        action, warning = f"/latest/meta-data/{dialect.announcement}", f"/latest/meta-data/{dialect.warning}"
        assert (await client.ask(INSTANCE_ID))[0] == 401
        _, token = await client.ask(TOKEN, method="PUT", headers={dialect.ttl_header: "60"})
        headers = {dialect.token_header: token}
        for item in ("instance-id", "placement/region", "placement/availability-zone", "instance-type"):
            assert (await client.ask(f"/latest/meta-data/{item}", headers=headers))[0] == 200
        assert await client.ask("/latest/meta-data/events/maintenance/scheduled", headers=headers) == (200, "[]")
        for item in (action, warning, TERMINATION):
            assert (await client.ask(item, headers=headers))[0] == 404
        client.server.notice(NODE, 1420480920.0)
        client.server.warn(NODE, 1420480800.0)
        assert await client.ask(action, headers=headers) == (
            200,
            '{"action": "terminate", "time": "2015-01-05T18:02:00Z"}',
        )
        assert await client.ask(warning, headers=headers) == (200, '{"noticeTime": "2015-01-05T18:00:00Z"}')


async def test_a_token_says_how_long_it_lasts() -> None:
    """As EC2 says it; there are programs that take a token without it for none."""
    header = DIALECTS[SimulatedCloud.AWS].ttl_header
    async with serving(cloud=SimulatedCloud.AWS) as client:
        url = client.server.url_of(NODE) + TOKEN
        async with aiohttp.request("PUT", url, headers={header: "60"}) as answer:
            assert answer.headers[header] == "60"


async def test_one_server_may_hold_nodes_of_both_clouds() -> None:
    async with serving() as client:
        client.server.add(OTHER, SimulatedCloud.AWS)
        assert (await client.ask(INSTANCE_ID))[0] == 200
        assert (await client.ask(INSTANCE_ID, OTHER))[0] == 401


async def test_a_refusing_server_comes_back_at_the_same_address() -> None:
    """Nobody listens while it refuses, open connections are dropped, and then everything is as before."""
    async with serving() as client:
        _, before = await client.ask(INSTANCE_ID)
        await client.server.set_fault(MetadataFault.REFUSED)
        for _ in range(2):
            with pytest.raises(aiohttp.ClientConnectionError):
                await client.ask(INSTANCE_ID)
        await client.server.set_fault(None)
        assert await client.ask(INSTANCE_ID) == (200, before)
