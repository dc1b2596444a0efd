"""A supervisor for each test that asks for one, on the event loop that it has in service."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import uvloop

from tests.supervisor.serving import Served, serving


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    """Its transports are not those of the standard loop."""
    policy: asyncio.AbstractEventLoopPolicy = uvloop.EventLoopPolicy()
    return policy


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """A supervisor that nobody has spoken to yet."""
    async with serving(tmp_path) as supervisor:
        yield supervisor
