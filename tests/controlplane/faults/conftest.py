import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.controlplane.leader.leader_replicas import LeaderReplicas
from tests.testkit.controlplane.faults import FaultyApi
from tests.testkit.controlplane.installed import InstalledPlace

SEED = int(os.environ.get("FAULTS_SEED", "1"))


@pytest.fixture
def source() -> random.Random:
    """The random generator that draws the jobs of a wave of notices."""
    return random.Random(SEED)  # noqa: S311 - no secret


@pytest.fixture
async def proxy(here: InstalledPlace, tmp_path: Path) -> AsyncIterator[FaultyApi]:
    """A proxy in front of the API server."""
    async with FaultyApi.before(here.plane.cluster, here.kubeconfig, tmp_path, SEED) as between:
        yield between


@pytest.fixture
async def replicas(here: InstalledPlace, proxy: FaultyApi, tmp_path: Path) -> AsyncIterator[LeaderReplicas]:
    """Supervisors that reach the API server through the proxy."""
    async with LeaderReplicas.on(here, tmp_path, proxy.kubeconfig) as all_of_them:
        await all_of_them.forget_lease()
        yield all_of_them
