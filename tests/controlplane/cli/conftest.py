import pytest

from tests.controlplane.ingest.ingest_cluster import IngestScene, scene
from tests.testkit.controlplane.installed import InstalledPlace


@pytest.fixture
async def here(here: InstalledPlace) -> IngestScene:
    """An empty API server on which a test plays nodes and pods."""
    return await scene(here)
