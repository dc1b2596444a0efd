from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from simulator.certificates import Authority
from tests.testkit.serving import Served, serving, tls_settings


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """A supervisor that serves from the test's directory, and to which nobody has spoken yet."""
    async with serving(tmp_path) as supervisor:
        yield supervisor


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "tls")


@pytest_asyncio.fixture
async def secured(tmp_path: Path, authority: Authority) -> AsyncIterator[Served]:
    directory = tmp_path / "secured"
    directory.mkdir()
    async with serving(directory, authority.ca_pem, **tls_settings(authority)) as supervisor:
        yield supervisor
