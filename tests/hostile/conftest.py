"""A supervisor with an honest client, for each test that asks for one."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.hostile.hostile_world import Bystander
from tests.testkit.loops import UvloopPolicy
from tests.testkit.serving import Served


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    return UvloopPolicy()


@pytest_asyncio.fixture
async def bystander(served: Served) -> AsyncIterator[Bystander]:
    """An honest client of that supervisor. At the end, the attack must have had no effect on it."""
    honest = await Bystander.of(served)
    yield honest
    await honest.noticed_nothing()
