"""Fixtures of more than one suite; tests/conftest.py loads them."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from simulator.certificates import SimulatedAuthority
from tests.testkit.faketime import library
from tests.testkit.packages import PackageUnavailable
from tests.testkit.serving import Served, serving, tls_settings
from tests.testkit.worlds import OpenWorld, opening


@pytest.fixture(scope="session")
def faketime() -> Path:
    """The library of libfaketime; a test that needs it is skipped where it cannot be had."""
    try:
        return library()
    except PackageUnavailable as reason:
        pytest.skip(str(reason))


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """A supervisor that serves from the test's directory, without any peers yet."""
    async with serving(tmp_path) as supervisor:
        yield supervisor


@pytest.fixture
def authority(tmp_path: Path) -> SimulatedAuthority:
    return SimulatedAuthority(tmp_path / "tls")


@pytest_asyncio.fixture
async def secured(tmp_path: Path, authority: SimulatedAuthority) -> AsyncIterator[Served]:
    """As `served`, with TLS, in a directory of its own."""
    directory = tmp_path / "secured"
    directory.mkdir()
    async with serving(directory, authority.ca_pem, **tls_settings(authority)) as supervisor:
        yield supervisor


@pytest.fixture
async def open_world(tmp_path: Path) -> AsyncIterator[OpenWorld]:
    """Opens a world with a number of nodes, named node1, node2 and so on."""
    async with opening(tmp_path) as open_with:
        yield open_with
