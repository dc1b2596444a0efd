from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.scenes import OpenWorld, opening


@pytest.fixture
async def open_world(tmp_path: Path) -> AsyncIterator[OpenWorld]:
    """Opens a world with so many nodes, node1 and on."""
    async with opening(tmp_path) as open_with:
        yield open_with
