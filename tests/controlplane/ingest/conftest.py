import pytest

from tests.controlplane.ingest.ingest_cluster import Scene, scene
from tests.testkit.controlplane.installed import Place


@pytest.fixture
async def here(here: Place) -> Scene:
    """An empty API server on which a test plays nodes, detectors and controllers."""
    return await scene(here)
