import pytest

from tests.controlplane.identity.identity_world import Pods
from tests.controlplane.store.store_cluster import Place


@pytest.fixture
async def pods(here: Place) -> Pods:
    """Makes pods there."""
    made = Pods(here)
    await made.open()
    return made
