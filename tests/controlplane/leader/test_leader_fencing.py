"""A supervisor that is not certain to lead changes nothing."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.errors import ApiUnavailableError
from servicekit.kubernetes.execute import execute
from servicekit.kubernetes.lease import LEASES, read
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.server import ApiServer
from supervisor.store.interface import StoreUnavailableError
from tests.controlplane.leader.leader_candidates import Hall
from tests.supervisor.decide.decide_builders import notice, running_job
from tests.supervisor.store.store_behaviour import put_job, to
from tests.testkit.controlplane.installed import InstalledPlace

pytestmark = pytest.mark.long


@pytest.fixture
async def server(here: InstalledPlace) -> AsyncIterator[ApiServer]:
    server = await ApiServer.connect(str(here.plane.cluster.kubeconfig), 5.0, may_write=lambda: False)
    yield server
    await server.close()


@pytest.mark.brief
async def test_a_store_writes_nothing_while_its_leader_is_not_certain(here: InstalledPlace) -> None:
    """No notice, no job, no decision, no end of any; and all of it when it is certain again."""
    job, certain = running_job(), True
    async with here.opened(may_write=lambda: certain) as store:
        store.lead(3)
        await store.put_notice(notice(1).id, to(notice(1)))
        await put_job(store, job)
        certain = False
        for attempt in (
            store.put_notice(notice(2).id, to(notice(2))),
            store.put_notice(notice(1).id, to(replace(notice(1), revision=2))),
            store.put_job(job.name, lambda _known: replace(job, uid="other")),
            store.decide(job, replace(job.decision, generation=6)),
            store.forget_job(job.name, job.uid),
        ):
            with pytest.raises(StoreUnavailableError, match="not certain"):
                await attempt
        assert [each["status"]["revision"] for each in await here.notices()] == [1]
        assert [each["status"]["decision"]["generation"] for each in await here.jobs()] == [5]
        certain = True
        assert await store.decide(job, replace(job.decision, generation=6))
        assert [each["status"]["epoch"] for each in await here.jobs()] == [3]


@pytest.mark.brief
async def test_no_request_that_changes_anything_is_sent(server: ApiServer, hall: Hall) -> None:
    await hall.put(holderIdentity="somebody", leaseDurationSeconds=1)
    leases = ResourceClient(server, LEASES, read)
    present = await leases.get(ObjectKey("default", hall.name))
    for attempt in (
        leases.create(ObjectKey("default", "other"), {"spec": {}}),
        leases.replace(present, "spec", {}),
        leases.merge(present, {"spec": {}}),
        leases.delete(present),
        leases.delete_unconditionally(present),
        execute(server, ObjectKey("default", "pod"), "main", ["true"]),
    ):
        with pytest.raises(ApiUnavailableError, match="not certain"):
            await attempt
    assert (await hall.lease())["holderIdentity"] == "somebody"
