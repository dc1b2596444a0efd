"""The store on a real API server: what every store promises, and what only others on the same cluster can do to it."""

import asyncio
import json
import time
from dataclasses import replace
from typing import Any

import pytest

from supervisor.domain.ids import Host, NoticeId, cluster_job
from supervisor.domain.job import Result
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.store.codec import notice_key
from supervisor.store.interface import MAX_EPISODES, Snapshot, StoreUnavailableError
from supervisor.store.kubernetes import KubernetesStore
from tests.supervisor.decide.decide_builders import T0, notice, observing, running_job, spec, waiting_job
from tests.supervisor.store.store_behaviour import Opener, StoreBehaviour, put_job, to
from tests.testkit.controlplane.api import ObjectRefused
from tests.testkit.controlplane.installed import JOBS, NOTICES, InstalledPlace, job_path
from tests.testkit.waiting import PATIENCE


class TestKubernetes(StoreBehaviour):
    @pytest.fixture
    def opener(self, here: InstalledPlace) -> Opener:
        return here.store


async def seen(store: KubernetesStore, condition: Any) -> Snapshot:
    snapshot = store.snapshot()
    async with asyncio.timeout(PATIENCE):
        while not condition(snapshot):
            snapshot = await store.changed(snapshot.version)
    return snapshot


def next_revision(known: ReclaimNotice | None) -> ReclaimNotice:
    return replace(notice(1), revision=known.revision + 1 if known else 1)


async def test_what_was_returned_lies_in_the_cluster_and_in_the_snapshot(here: InstalledPlace) -> None:
    async with here.opened() as store:
        for number in range(1, 21):
            await store.put_notice(notice(1).id, next_revision)
            (lies,) = await here.notices()
            assert lies["status"]["revision"] == number
            assert store.snapshot().notices[notice(1).id].revision == number


async def test_own_changes_are_seen_without_the_watch(here: InstalledPlace) -> None:
    store = await here.store()
    making = asyncio.create_task(store._notices.run())  # No watch runs beside it.
    await store.put_notice(notice(1).id, to(notice(1)))
    assert store.snapshot().notices == {notice(1).id: notice(1)}
    await store.put_notice(notice(1).id, to(replace(notice(1), revision=2)))
    assert store.snapshot().notices[notice(1).id].revision == 2
    making.cancel()
    await asyncio.gather(making, return_exceptions=True)
    await store.close()


async def test_changes_that_wait_for_one_key_share_a_request(here: InstalledPlace) -> None:
    async with here.opened() as store:
        await store.put_notice(notice(1).id, next_revision)
        before = store.server.requests
        await asyncio.gather(*(store.put_notice(notice(1).id, next_revision) for _ in range(50)))
        assert store.server.requests - before <= 2
        assert store.snapshot().notices[notice(1).id].revision == 51


async def test_each_change_of_a_notice_is_one_request(here: InstalledPlace) -> None:
    """Also the first one. A supervisor of version 0.1 reads the same notice, and changes it in its own way."""
    withdrawn = replace(notice(1), state=NoticeState.WITHDRAWN, ended_at=T0 + 1, revision=2)
    store = await here.store()
    making = asyncio.create_task(store._notices.run())  # No watch runs beside it, which is a request too.
    before = store.server.requests
    await store.put_notice(notice(1).id, to(notice(1)))
    assert store.server.requests - before == 1
    (lies,) = await here.notices()
    assert (lies["apiVersion"], lies["status"]["state"]) == ("job-supervisor.kube-ai.io/v1alpha1", "active")
    await store.put_notice(notice(1).id, to(withdrawn))
    assert store.server.requests - before == 2
    making.cancel()
    await asyncio.gather(making, return_exceptions=True)
    await store.close()
    await here.api.patch(f"{NOTICES}/{lies['metadata']['name']}/status", {"status": {"state": "gone"}})
    async with here.opened() as another:
        assert another.snapshot().notices[notice(1).id].state is NoticeState.GONE


async def test_one_change_that_is_refused_takes_no_other_with_it(here: InstalledPlace) -> None:
    """They waited together; the API server only says that something is wrong with the outcome of all."""

    def too_long(known: ReclaimNotice | None) -> ReclaimNotice:
        return replace(next_revision(known), message="x" * 600)

    async with here.opened() as store:
        outcomes = await asyncio.gather(
            *(
                store.put_notice(notice(1).id, change)
                for change in (next_revision, next_revision, next_revision, too_long)
            ),
            return_exceptions=True,
        )
        assert [isinstance(each, StoreUnavailableError) for each in outcomes] == [False, False, False, True]
        assert "message" in str(outcomes[3])
        (lies,) = await here.notices()
        assert lies["status"]["revision"] == 3


async def test_an_end_and_a_new_beginning_that_wait_together_are_both_written(here: InstalledPlace) -> None:
    """Two episodes lie in two resources, and neither may be left as it was."""
    ended = replace(notice(1), state=NoticeState.WITHDRAWN, ended_at=T0 + 1, revision=2)
    again = replace(notice(1), episode=2, revision=3)
    async with here.opened() as store:
        await store.put_notice(notice(1).id, to(notice(1)))
        await asyncio.gather(*(store.put_notice(notice(1).id, to(each)) for each in (ended, again)))
        lies = {one["spec"]["episode"]: one["status"]["state"] for one in await here.notices()}
        assert lies == {1: "withdrawn", 2: "active"}
        assert store.snapshot().notices == {again.id: again}


async def test_no_change_of_two_rivals_is_lost(here: InstalledPlace) -> None:
    """Each writes only where nothing came between, and makes its change again where something did."""
    async with here.opened() as one, here.opened() as other:
        for _ in range(10):
            await asyncio.gather(*(store.put_notice(notice(1).id, next_revision) for store in (one, other)))
        (lies,) = await here.notices()
        assert lies["status"]["revision"] == 20
        for store in (one, other):
            await seen(store, lambda now: now.notices[notice(1).id].revision == 20)


async def test_of_two_rivals_that_decide_on_one_reading_one_is_told_no(here: InstalledPlace) -> None:
    job = running_job()
    async with here.opened() as one, here.opened() as other:
        await put_job(one, job)
        await seen(other, lambda now: now.jobs == {job.name: job})
        first = replace(job.decision, generation=6, reason="One.")
        outcomes = await asyncio.gather(one.decide(job, first), other.decide(job, replace(first, reason="Other.")))
        assert sorted(outcomes) == [False, True]
        (lies,) = await here.jobs()
        assert lies["status"]["decision"]["reason"] == ("One." if outcomes[0] else "Other.")


async def test_a_leader_of_before_is_refused_by_the_api_server(here: InstalledPlace) -> None:
    """Whatever part of a job or notice it would write; it has read all there is, so only its epoch is wrong."""
    job = running_job()
    async with here.opened(epoch=2) as now, here.opened(epoch=1) as before:
        await now.put_notice(notice(1).id, to(notice(1)))
        await put_job(now, job)
        await seen(before, lambda snapshot: snapshot.notices and snapshot.jobs)
        with pytest.raises(StoreUnavailableError, match="no longer leads"):
            await before.put_notice(notice(1).id, to(replace(notice(1), revision=9)))
        with pytest.raises(StoreUnavailableError, match="no longer leads"):
            await before.decide(job, replace(job.decision, generation=6, reason="Stale."))
        with pytest.raises(StoreUnavailableError, match="no longer leads"):
            await put_job(before, replace(job, spec=spec(1, 9)))
        assert (await here.notices())[0]["status"]["revision"] == 1
        assert (await here.jobs())[0]["status"]["decision"]["generation"] == 5


async def test_a_leader_of_before_is_refused_where_only_the_other_part_was_written(here: InstalledPlace) -> None:
    job = running_job()
    async with here.opened(epoch=1) as before, here.opened(epoch=2) as now:
        await put_job(before, job)
        await seen(now, lambda snapshot: job.name in snapshot.jobs)
        await put_job(now, replace(job, spec=spec(1, 9)))
        await seen(before, lambda snapshot: snapshot.jobs[job.name].spec == spec(1, 9))
        with pytest.raises(StoreUnavailableError, match="no longer leads"):
            await before.put_job(job.name, lambda known: known and observing(known, restarts=1))


async def test_what_a_person_deletes_is_gone_and_can_come_again(here: InstalledPlace) -> None:
    """A notice and a job, under the store's feet; the next change finds nothing and begins anew."""
    job = running_job()
    async with here.opened() as store:
        await store.put_notice(notice(1).id, to(notice(1)))
        await put_job(store, job)
        await here.api.delete(f"{NOTICES}/{(await here.notices())[0]['metadata']['name']}")
        await here.api.delete(job_path("standalone.job"))
        found = await store.put_notice(notice(1).id, next_revision)
        assert found is not None
        assert found.revision in (1, 2)
        assert not await store.decide(job, replace(job.decision, generation=6))
        assert store.snapshot().jobs == {}
        await put_job(store, job)
        assert [one["metadata"]["name"] for one in await here.jobs()] == ["standalone.job"]
        assert store.snapshot().jobs == {job.name: job}


async def test_a_deletion_is_seen_without_a_change(here: InstalledPlace) -> None:
    async with here.opened() as store:
        await store.put_notice(notice(1).id, to(notice(1)))
        await here.api.delete(f"{NOTICES}/{(await here.notices())[0]['metadata']['name']}")
        await seen(store, lambda now: not now.notices)


async def test_what_other_people_write_into_the_metadata_stays(here: InstalledPlace) -> None:
    job = running_job()
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": "1-2-3"}
    async with here.opened() as store:
        await put_job(store, job)
        theirs = {"labels": {"team": "a"}, "ownerReferences": [owner]}
        await here.api.patch(job_path("standalone.job"), {"metadata": theirs})
        await put_job(store, observing(replace(job, spec=spec(1, 9)), restarts=3))
        (lies,) = await here.jobs()
        assert lies["metadata"]["labels"] == {"team": "a"}
        assert lies["metadata"]["ownerReferences"] == [owner]
        assert (lies["spec"]["minWorkers"], lies["status"]["observed"]["restarts"]) == (1, 3)


async def test_half_a_notice_does_not_count_and_is_made_whole(here: InstalledPlace) -> None:
    """A supervisor of version 0.1 was killed before it wrote the status: nobody was told that it is durable."""
    async with here.opened() as store:
        await store.put_notice(notice(1).id, to(notice(1)))
    (whole,) = await here.notices()
    await here.api.delete(f"{NOTICES}/{whole['metadata']['name']}")
    await here.half_a_notice(whole["metadata"]["name"], whole["spec"])
    async with here.opened() as store:
        assert store.snapshot().notices == {}
        assert await store.put_notice(notice(1).id, to(notice(1))) == notice(1)
        assert store.snapshot().notices == {notice(1).id: notice(1)}


async def test_half_a_notice_that_nobody_finished_is_forgotten(here: InstalledPlace) -> None:
    subject = {"kind": "node", "name": "n", "uid": "u"}
    spec_alone = {"source": "s", "subject": subject, "episode": 1}
    await here.half_a_notice("half", spec_alone)
    async with here.opened() as store:
        assert await store.prune(time.time() - 3600) == 0
        assert await store.prune(time.time() + 3600) == 1
    assert await here.notices() == []


async def test_a_notice_of_the_version_before_stays_in_its_resource(here: InstalledPlace) -> None:
    """Which was named without the subject's name; only the next episode has a resource of the present name."""
    async with here.opened() as store:
        await store.put_notice(notice(1).id, to(notice(1)))
    (lies,) = await here.notices()
    await here.api.delete(f"{NOTICES}/{lies['metadata']['name']}")
    earlier = notice_key(NoticeId("metadata/uid-1"), 1).name
    await here.half_a_notice(earlier, lies["spec"])
    await here.api.patch(f"{NOTICES}/{earlier}/status", {"status": lies["status"]})
    ended = replace(notice(1), state=NoticeState.WITHDRAWN, ended_at=T0 + 1, revision=2)
    again = replace(notice(1), episode=2, revision=3)
    async with here.opened() as store:
        assert store.snapshot().notices == {notice(1).id: notice(1)}
        await store.put_notice(ended.id, to(ended))
        assert [one["metadata"]["name"] for one in await here.notices()] == [earlier]
        await store.put_notice(again.id, to(again))
    async with here.opened() as store:
        assert store.snapshot().notices == {again.id: again}
        names = {one["spec"]["episode"]: one["metadata"]["name"] for one in await here.notices()}
        assert names == {1: earlier, 2: notice_key(again.id, 2).name}
        assert [one["status"]["state"] for one in await here.notices() if one["spec"]["episode"] == 1] == ["withdrawn"]


async def test_a_new_job_of_an_old_name_takes_its_resource(here: InstalledPlace) -> None:
    """The earlier one is over: nothing of it is left in the new one."""
    earlier = observing(running_job(), result=Result.FAILED, exit_code=1)
    later = replace(waiting_job(spec(2, 4)), uid="later")
    async with here.opened() as store:
        await put_job(store, earlier)
        await put_job(store, later)
        assert store.snapshot().jobs == {later.name: later}
    async with here.opened() as store:
        assert store.snapshot().jobs == {later.name: later}


async def test_jobs_of_one_name_in_two_namespaces_are_two(here: InstalledPlace) -> None:
    names = [cluster_job("default", "trainingjob", "job"), cluster_job("kube-public", "trainingjob", "job")]
    jobs = [replace(waiting_job(), name=name) for name in names] + [waiting_job()]
    async with here.opened() as store:
        for job in jobs:
            await put_job(store, job)
        assert store.snapshot().jobs == {job.name: job for job in jobs}
    lies = {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in await here.jobs()}
    assert lies == {("default", "trainingjob.job"), ("kube-public", "trainingjob.job"), ("default", "standalone.job")}


async def test_a_source_that_never_settles_fills_no_cluster(here: InstalledPlace) -> None:
    async with here.opened() as store:
        for episode in range(1, MAX_EPISODES + 6):
            await store.put_notice(notice(1).id, to(replace(notice(1), episode=episode)))
        assert {one["spec"]["episode"] for one in await here.notices()} == set(range(6, MAX_EPISODES + 6))


async def test_forgetting_a_job_forgets_that_job(here: InstalledPlace) -> None:
    async with here.opened() as store:
        await put_job(store, running_job())
        await store.forget_job(running_job().name, "another")
        assert len(await here.jobs()) == 1
        await store.forget_job(running_job().name, running_job().uid)
        assert await here.jobs() == []
        assert store.snapshot().jobs == {}


async def test_four_thousand_workers_fit_with_room_to_spare(here: InstalledPlace) -> None:
    """As the API server keeps them, its own notes included, in the middle of a shrink."""
    hosts = frozenset(Host(f"cn-hangzhou.i-bp1abcdefghijkl{number:05}.training") for number in range(4000))
    job = observing(running_job(spec(2, 4000), workers=0), hosts=hosts)
    job = replace(job, decision=replace(job.decision, hosts=hosts, exclusions=frozenset(sorted(hosts)[::9])))
    async with here.opened() as store:
        await put_job(store, job)
        assert await store.decide(job, replace(job.decision, generation=6))
        (lies,) = await here.jobs()
        assert len(json.dumps(lies, separators=(",", ":"))) < 256 * 1024
    async with here.opened() as store:
        assert store.snapshot().jobs[job.name].decision.hosts == hosts


async def test_a_thousand_notices_at_once(here: InstalledPlace, record_property: Any) -> None:
    async with here.opened() as store:
        before, begun = store.server.requests, time.monotonic()
        await asyncio.gather(*(store.put_notice(notice(n).id, to(notice(n))) for n in range(1000)))
        seconds, requests = time.monotonic() - begun, store.server.requests - before
        assert len(store.snapshot().notices) == 1000
        assert requests < 1010  # Watches that begin count as well.
        record_property("seconds_a_notice", seconds / 1000)
        record_property("requests_a_notice", requests / 1000)
        print(f"\n1,000 notices: {requests / 1000:.2f} requests and {seconds:.2f} ms each")  # noqa: T201 - the figure
    assert len(await here.notices()) == 1000


@pytest.mark.parametrize(
    ("path", "change"),
    [
        (NOTICES, {"spec": {"episode": 2}}),
        (f"{NOTICES}/status", {"status": {"state": "perhaps"}}),
        (f"{NOTICES}/status", {"status": {"state": "gone"}}),
        (JOBS, {"spec": {"minWorkers": 7}}),
        (JOBS, {"spec": {"name": "other"}}),
        (f"{JOBS}/status", {"status": {"decision": {"phase": "Dreaming"}}}),
        (f"{JOBS}/status", {"status": {"decision": {"generation": 1}}}),
    ],
)
async def test_what_makes_no_sense_is_refused(here: InstalledPlace, path: str, change: dict[str, Any]) -> None:
    async with here.opened() as store:
        await store.put_notice(notice(1).id, to(notice(1)))
        await put_job(store, running_job())
    name = (await here.notices())[0]["metadata"]["name"]
    path = path.replace(NOTICES, f"{NOTICES}/{name}").replace(JOBS, job_path("standalone.job"))
    with pytest.raises(ObjectRefused, match="422"):
        await here.api.patch(path, change)


async def test_people_see_what_is_so(here: InstalledPlace) -> None:
    job = running_job()
    job = replace(job, decision=replace(job.decision, exclusions=frozenset([Host("n1")]), reason="One goes."))
    async with here.opened() as store:
        await store.put_notice(notice(1).id, to(notice(1)))
        await put_job(store, job)
    notices = await here.table(NOTICES)
    assert notices[0] | {"Age": ""} == {
        "Name": notices[0]["Name"],
        "Subject": "n1",
        "Source": "metadata",
        "Class": "sudden",
        "State": "active",
        "Deadline": "2023-11-14T22:18:20Z",
        "Ended": None,
        "Age": "",
    }
    jobs = await here.table(JOBS)
    assert jobs[0] | {"Age": ""} == {
        "Name": "standalone.job",
        "Phase": "Running",
        "Workers": 5,
        "Excluded": 1,
        "Min": 3,
        "Run": 1,
        "Age": "",
        "Reason": "One goes.",
    }
