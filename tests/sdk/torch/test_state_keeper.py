"""The client of state keepers, against a keeper with real sockets and files."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from kubeai.torch.state_keeper import KeeperClient, KeeperFailed, KeeperRoom, new_name

from node_agent.keeper.refusals import RefusalCode
from tests.node_agent.keeper.keeper_world import KeeperScene, keeping, memory
from tests.testkit.waiting import until

CONTENT = b"a part of a state"


@pytest.fixture
async def scene() -> AsyncIterator[KeeperScene]:
    with memory() as directory:
        async with keeping(directory) as running:
            yield running


async def _put(scene: KeeperScene, name: str, seconds: float) -> None:
    client, end = KeeperClient(str(scene.address), "of-a"), time.monotonic() + 60.0
    await asyncio.to_thread(client.put, name, 0, [CONTENT], size=len(CONTENT), seconds=seconds, end=end)


@pytest.mark.parametrize("seconds", [0.3, 5.4, 59.7])
async def test_a_part_is_kept_for_as_long_as_it_was_asked_for(scene: KeeperScene, seconds: float) -> None:
    """For a fraction of a second too, and not a moment longer."""
    name = new_name()
    await _put(scene, name, seconds)
    scene.clock.system += seconds - 0.05
    assert await scene.get(name, 0) == CONTENT
    scene.clock.system += 0.06
    assert await scene.get(name, 0) is None


async def test_the_shortest_time_is_still_a_time(scene: KeeperScene) -> None:
    name = new_name()
    await _put(scene, name, 1e-9)
    assert await scene.get(name, 0) == CONTENT


@pytest.mark.parametrize("seconds", [0.0, -1.0])
async def test_nothing_is_sent_that_would_be_kept_for_no_time(scene: KeeperScene, seconds: float) -> None:
    with pytest.raises(KeeperFailed, match="no time"):
        await _put(scene, new_name(), seconds)
    assert scene.reviews.asked == 0


async def test_room_is_what_the_keeper_says(scene: KeeperScene) -> None:
    room = await asyncio.to_thread(KeeperClient(str(scene.address), "of-a").room)
    assert room == KeeperRoom(scene.free, 600.0)


async def test_a_need_that_exceeds_the_room_is_a_refusal_that_operators_see(scene: KeeperScene) -> None:
    client = KeeperClient(str(scene.address), "of-a")
    client.report_need(scene.free)
    await until(lambda: scene.reviews.asked)
    client.report_need(scene.free + 1)
    await until(lambda: scene.refused)
    assert scene.refused == {RefusalCode.NO_ROOM: 1}


def test_a_need_that_nobody_hears_disturbs_nobody() -> None:
    """No keeper listens there; an exception in a thread is an error here."""
    KeeperClient("127.0.0.1:1").report_need(1)


@pytest.mark.parametrize(
    "told", ['{"bytes": 1, "seconds": NaN}', '{"bytes": 1, "seconds": Infinity}', '{"bytes": 1}', "[]", "no"]
)
async def test_a_room_that_nobody_understands_is_none(told: str) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(text=told)

    app = web.Application()
    app.router.add_get("/v1/room", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        with pytest.raises(KeeperFailed):
            await asyncio.to_thread(KeeperClient(f"127.0.0.1:{runner.addresses[0][1]}").room)
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("wait", "seconds"),
    [(None, 600.0), (900.0, 600.0), (0.25, 0.25), (0.0, 0.0)],
    ids=["any time", "long", "short", "none"],
)
def test_a_state_is_kept_for_as_long_as_the_job_waits_and_the_keeper_keeps(wait: float | None, seconds: float) -> None:
    assert KeeperRoom(1, 600.0).kept_for(wait) == seconds
