from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.controlplane.pki.pki_world import Shared
from tests.testkit.controlplane.installed import InstalledPlace


@pytest.fixture
async def shared(here: InstalledPlace, tmp_path: Path) -> AsyncIterator[Shared]:
    async with Shared.on(here, tmp_path) as own:
        yield own
