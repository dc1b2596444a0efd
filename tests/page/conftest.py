from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.supervisor.serving import Served, serving


@pytest_asyncio.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with serving(tmp_path) as supervisor:
        yield supervisor
