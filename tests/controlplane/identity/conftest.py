from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.controlplane.identity.identity_scene import IdentityScene
from tests.controlplane.identity.identity_world import IdentityPods, job_of, supervising
from tests.supervisor.store.store_behaviour import put_job
from tests.testkit.controlplane.installed import InstalledPlace


@pytest.fixture
async def pods(here: InstalledPlace) -> IdentityPods:
    made = IdentityPods(here)
    await made.open()
    return made


@pytest.fixture
async def scene(here: InstalledPlace, pods: IdentityPods, tmp_path: Path) -> AsyncIterator[IdentityScene]:
    owner = await pods.owner("train")
    worker = await pods.pod("worker-0", owner)
    async with here.opened() as store:
        await put_job(store, job_of(owner, "worker-0"))
        async with supervising(here, tmp_path / "supervisor") as running:
            await running.knows(owner.job)
            yield IdentityScene(pods, running, owner, await pods.token(worker))
