"""The API server goes away, comes back, forgets its history or says nothing: only what is durable is confirmed."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.store.interface import Snapshot, StoreError, StoreUnavailableError
from supervisor.store.kubernetes import KubernetesStore
from tests.supervisor.decide.decide_builders import T0, notice, running_job
from tests.supervisor.store.store_behaviour import opened, put_job, to
from tests.testkit.controlplane.api import client
from tests.testkit.controlplane.binaries import BinaryProgram
from tests.testkit.controlplane.installed import NOTICES, InstalledPlace, define
from tests.testkit.controlplane.outages import frozen
from tests.testkit.controlplane.running import ControlPlane
from tests.testkit.waiting import PATIENCE, until


async def seen(store: KubernetesStore, condition: Callable[[Snapshot], object]) -> Snapshot:
    snapshot = store.snapshot()
    async with asyncio.timeout(PATIENCE):
        while not condition(snapshot):
            snapshot = await store.changed(snapshot.version)
    return snapshot


async def restart(place: InstalledPlace) -> None:
    place.plane.launch(BinaryProgram.API_SERVER)
    place.plane.wait_ready(BinaryProgram.API_SERVER)
    await define(place.api)


class Writer:
    """Raises the revision of one notice again and again, and remembers what was confirmed."""

    def __init__(self, store: KubernetesStore, number: int) -> None:
        self.key = notice(number).id
        self.confirmed = 0
        self.refused = 0
        self._store = store
        self._number = number

    async def run(self) -> None:
        while True:
            try:
                made = await self._store.put_notice(self.key, self._change)
            except StoreUnavailableError:
                self.refused += 1
                await asyncio.sleep(0.05)
            else:
                assert made is not None
                self.confirmed = made.revision

    def _change(self, known: ReclaimNotice | None) -> ReclaimNotice:
        assert (known.revision if known else 0) >= self.confirmed, "what was confirmed is not known any more"
        return replace(notice(self._number), revision=known.revision + 1 if known else 1)


async def more(writers: list[Writer], what: str) -> None:
    """Waits until each of them had several more changes confirmed, or refused."""
    before = [getattr(writer, what) for writer in writers]
    await until(lambda: all(getattr(one, what) > was + 2 for one, was in zip(writers, before, strict=True)))


async def test_killed_and_restarted_under_writes_nothing_confirmed_is_lost(here: InstalledPlace) -> None:
    """Changes are refused while it is away, and made once it is back, by the same store."""
    async with here.opened() as store:
        writers = [Writer(store, number) for number in range(5)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(writer.run()) for writer in writers]
            for _ in range(2):
                await more(writers, "confirmed")
                here.plane.kill(BinaryProgram.API_SERVER)
                await more(writers, "refused")
                here.plane.launch(BinaryProgram.API_SERVER)
                await more(writers, "confirmed")
            for task in tasks:
                task.cancel()
        lies = {one["spec"]["subject"]["name"]: one["status"]["revision"] for one in await here.notices()}
        for number, writer in enumerate(writers):
            assert lies[f"n{number}"] >= writer.confirmed
            assert store.snapshot().notices[writer.key].revision >= writer.confirmed


async def test_what_changed_while_it_was_away_is_seen_when_it_is_back(here: InstalledPlace) -> None:
    async with here.opened() as store:
        for number in (1, 2):
            await store.put_notice(notice(number).id, to(notice(number)))
        here.plane.kill(BinaryProgram.API_SERVER)
        await restart(here)
        first = (await here.notices())[0]
        await here.api.delete(f"{NOTICES}/{first['metadata']['name']}")
        await seen(store, lambda now: len(now.notices) == 1)


async def test_a_history_that_was_compacted_is_listed_again(here: InstalledPlace) -> None:
    """The version from which the watch would go on is not known any more, and an event was missed."""
    async with here.opened() as store:
        for number in (1, 2):
            await store.put_notice(notice(number).id, to(notice(number)))
        # Away as a process is that sleeps: the API server is another one when it goes on.
        names = [one["metadata"]["name"] for one in await here.notices()]
        here.plane.kill(BinaryProgram.API_SERVER)
        here.plane.compact()
        await restart(here)
        await here.api.delete(f"{NOTICES}/{names[0]}")
        here.plane.compact()
        await seen(store, lambda now: len(now.notices) == 1)
        await store.put_notice(notice(3).id, to(notice(3)))


async def test_one_that_says_nothing_is_given_up_in_time(here: InstalledPlace) -> None:
    """As long as its time-out and not for ever; nobody believes that anything is durable, and then it is."""
    job = running_job()
    async with here.opened(timeout_seconds=2.0) as store:
        await put_job(store, job)
        decision = replace(job.decision, generation=6, reason="Decided.")
        with frozen(here.plane):
            async with asyncio.timeout(PATIENCE):
                with pytest.raises(StoreUnavailableError):
                    await store.put_notice(notice(1).id, to(notice(1)))
                with pytest.raises(StoreUnavailableError):
                    await store.decide(job, decision)
            assert store.snapshot().notices == {}
            assert store.snapshot().jobs == {job.name: job}
        async with asyncio.timeout(PATIENCE):
            while store.snapshot().notices != {notice(1).id: notice(1)}:
                try:
                    await store.put_notice(notice(1).id, to(notice(1)))
                except StoreUnavailableError:
                    await asyncio.sleep(0.05)
        # The first attempt may have been made although nobody was told.
        if store.snapshot().jobs[job.name].decision != decision:
            assert await store.decide(job, decision)
        assert [one["status"]["decision"]["reason"] for one in await here.jobs()] == ["Decided."]


async def test_a_watch_that_falls_silent_is_opened_again(here: InstalledPlace) -> None:
    """Its connection hangs while the API server sleeps: longer than the watch may last, so another one is opened."""
    async with here.opened(watch_seconds=1, timeout_seconds=2.0) as store:
        with frozen(here.plane):
            await asyncio.sleep(4.0)  # Longer than the watch and a time-out.
        async with here.opened() as other:
            await other.put_notice(notice(1).id, to(notice(1)))
        await seen(store, lambda now: now.notices)


async def test_a_store_that_opens_meanwhile_waits(here: InstalledPlace) -> None:
    """A supervisor that is restarted during an outage serves as soon as that is over, with all that is known."""
    async with here.opened() as store:
        await store.put_notice(notice(1).id, to(notice(1)))
    here.plane.kill(BinaryProgram.API_SERVER)
    opening = asyncio.create_task(here.store())
    await asyncio.sleep(0)
    assert not opening.done()
    await restart(here)
    async with asyncio.timeout(PATIENCE):
        store = await opening
    async with opened(lambda: opening):
        assert store.snapshot().notices == {notice(1).id: notice(1)}


async def test_missing_and_earlier_definitions_are_said_in_a_sentence(own_plane: ControlPlane) -> None:
    """The earlier ones lack the version by which a notice is created in one request."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/reclaimnotices.job-supervisor.kube-ai.io"
    kubeconfig = str(own_plane.cluster.kubeconfig)
    async with client(own_plane.cluster) as api:
        bare = InstalledPlace(own_plane, api)
        with pytest.raises(StoreError, match="apply the chart's files/crds/ first"):
            await bare.store(kubeconfig=kubeconfig)
        with pytest.raises(StoreError, match="no cluster to connect to"):
            await bare.store(kubeconfig="/nowhere")
        await define(api)
        earlier = (await api.get(path))["spec"]["versions"][:1]
        await api.patch(path, {"spec": {"versions": earlier}})

        async def refusal() -> str:
            try:
                async with bare.opened(kubeconfig=kubeconfig):
                    return ""
            except StoreError as error:
                return str(error)

        assert "apply the chart's files/crds/ first" in (await until(refusal, "the earlier definition is served") or "")


async def test_an_outage_during_a_prune_forgets_later(here: InstalledPlace) -> None:
    ended = [replace(notice(n), state=NoticeState.GONE, ended_at=T0) for n in range(20)]
    async with here.opened() as store:
        for each in ended:
            await store.put_notice(each.id, to(each))
        here.plane.kill(BinaryProgram.API_SERVER)
        with pytest.raises(StoreUnavailableError):
            await store.prune(T0 + 1)
        assert len(store.snapshot().notices) == 20
        await restart(here)
        assert await store.prune(T0 + 1) == 20
        assert await here.notices() == []
