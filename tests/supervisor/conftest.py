"""A supervisor for each test that asks for one, on the event loop that it has in service."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import uvloop

from simulator.certificates import Authority
from tests.testkit.serving import Served, serving, tls_settings


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    policy: asyncio.AbstractEventLoopPolicy = uvloop.EventLoopPolicy()
    return policy


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path) as supervisor:
        yield supervisor


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "tls")


@pytest_asyncio.fixture
async def secured(tmp_path: Path, authority: Authority) -> AsyncIterator[Served]:
    async with serving(tmp_path, authority.ca_pem, **tls_settings(authority)) as supervisor:
        yield supervisor
