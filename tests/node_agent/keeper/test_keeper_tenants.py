"""A tenant shows a token, which the API server reviews, to send a part."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from node_agent.keeper.refusals import RefusalCode
from node_agent.keeper.tenants import OneTenant
from tests.node_agent.keeper.keeper_world import KeeperScene, Reviews, keeping, memory
from tests.testkit.waiting import until

STATE = "5a" * 32


@pytest.fixture
async def scene() -> AsyncIterator[KeeperScene]:
    with memory() as directory:
        async with keeping(directory) as running:
            yield running


async def _asked(scene: KeeperScene, **headers: str) -> int:
    async with scene.http.get(scene.url("/v1/room"), headers=headers) as answer:
        return answer.status


@pytest.mark.parametrize("given", ["", "Bearer ", "Bearer somebody's", "of-a", "Basic of-a", "bearer of-a"])
async def test_who_shows_no_pods_token_is_refused(scene: KeeperScene, given: str) -> None:
    assert await _asked(scene, **({"Authorization": given} if given else {})) == 401
    assert (await scene.put(STATE, 0, b"data", Authorization=given))[0] == 401
    assert scene.files == []


async def test_two_tokens_are_none(scene: KeeperScene) -> None:
    headers = [("Authorization", "Bearer of-a"), ("Authorization", "Bearer of-b")]
    async with scene.http.get(scene.url("/v1/room"), headers=headers) as answer:
        assert answer.status == 401


async def test_a_token_for_another_audience_is_refused(scene: KeeperScene) -> None:
    """Also by an API server that says it is authenticated, for whatever audience."""
    scene.reviews.audience = "somebody"
    assert await _asked(scene, Authorization="Bearer of-a") == 401


async def test_a_token_that_cannot_be_reviewed_is_unknown(scene: KeeperScene) -> None:
    """It is neither let in nor remembered as nobody's. A token that was known stays so for a minute."""
    assert await _asked(scene, Authorization="Bearer of-b") == 200
    scene.reviews.down = True
    status, refusal = await scene.put(STATE, 0, b"data")
    assert (status, refusal["code"]) == (503, "unavailable")
    assert await _asked(scene, Authorization="Bearer of-b") == 200
    scene.clock.steady += 60.0
    assert await _asked(scene, Authorization="Bearer of-b") == 503
    scene.reviews.down = False
    assert (await scene.put(STATE, 0, b"data"))[0] == 201


async def test_a_token_is_reviewed_once_a_minute(scene: KeeperScene) -> None:
    """Good or not, and however many requests show it at once."""
    scene.reviews.held = asyncio.Event()
    asking = [asyncio.create_task(_asked(scene, Authorization="Bearer of-a")) for _ in range(10)]
    await until(lambda: scene.reviews.asked)
    asking[0].cancel()
    scene.reviews.held.set()
    assert await asyncio.gather(*asking[1:]) == [200] * 9
    for _ in range(3):
        assert await _asked(scene, Authorization="Bearer nobody's") == 401
    assert scene.reviews.asked == 2
    scene.clock.steady += 60.0
    assert await _asked(scene, Authorization="Bearer of-a") == 200
    assert scene.reviews.asked == 3


async def test_a_peer_cannot_have_any_number_of_tokens_reviewed(scene: KeeperScene) -> None:
    """It may show others after a while; what is known needs no review."""
    assert await _asked(scene, Authorization="Bearer of-a") == 200
    answers = [await _asked(scene, Authorization=f"Bearer made-up-{number}") for number in range(80)]
    assert answers == [401] * 63 + [429] * 17
    assert await _asked(scene, Authorization="Bearer of-a") == 200
    scene.clock.steady += 1.0
    assert await _asked(scene, Authorization="Bearer another") == 401
    assert scene.refused[RefusalCode.TOO_MANY] == 17


async def test_without_authentication_everybody_is_one_tenant() -> None:
    reviews = Reviews()
    with memory() as directory:
        async with keeping(directory, reviews=reviews, tenants=OneTenant()) as scene:
            for token in ("of-a", "of-b", "nobody's"):
                assert (await scene.put(STATE, 0, b"data", token))[0] == 201
            assert reviews.asked == 0
