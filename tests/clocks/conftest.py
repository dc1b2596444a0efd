from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.clocks.clocks_faketime import library
from tests.e2e.scenes import OpenWorld, opening
from tests.images.images_packages import CannotBeHad


@pytest.fixture(scope="session")
def faketime() -> Path:
    """The library; the tests are skipped where it cannot be had."""
    try:
        return library()
    except CannotBeHad as reason:
        pytest.skip(str(reason))


@pytest.fixture
async def open_world(tmp_path: Path) -> AsyncIterator[OpenWorld]:
    """Opens a world with so many nodes, node1 and on."""
    async with opening(tmp_path) as open_with:
        yield open_with
