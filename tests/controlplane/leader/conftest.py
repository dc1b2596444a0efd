from collections.abc import AsyncIterator

import pytest

from tests.controlplane.leader.leader_candidates import Hall
from tests.testkit.controlplane.installed import InstalledPlace


@pytest.fixture
async def hall(here: InstalledPlace) -> AsyncIterator[Hall]:
    """A lease of the test's own, and those who run for it."""
    async with Hall.open(here) as own:
        yield own
