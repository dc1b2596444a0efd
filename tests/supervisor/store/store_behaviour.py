"""The contract of every store."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

import pytest

from supervisor.decide.registration import NameIsLiveError
from supervisor.domain.ids import JobName, NoticeId
from supervisor.domain.job import Decision, Phase, Result, SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.store.interface import NoticeChange, Store, StoreUnavailableError
from tests.supervisor.decide.decide_builders import T0, notice, observing, running_job, waiting_job
from tests.testkit.waiting import PATIENCE

Opener = Callable[[], Awaitable[Store]]
"""Opens the store of a test, each time the same one."""

S = TypeVar("S", bound=Store)


@contextlib.asynccontextmanager
async def opened(opener: Callable[[], Awaitable[S]]) -> AsyncIterator[S]:
    store = await opener()
    task = asyncio.create_task(store.run())
    try:
        yield store
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()


def to(value: ReclaimNotice) -> NoticeChange:
    return lambda _known: value


async def put_job(store: Store, job: SupervisedJob) -> None:
    await store.put_job(job.name, lambda _known: job)


class StoreBehaviour:
    """The tests; a class of its own for each store, with a fixture `opener`."""

    async def test_everything_comes_back_after_reopening(self, opener: Opener) -> None:
        second = replace(notice(1), episode=2, first_seen=T0 + 50)
        job = running_job()
        async with opened(opener) as store:
            await store.put_notice(second.id, to(replace(notice(1), state=NoticeState.WITHDRAWN, ended_at=T0 + 9)))
            await store.put_notice(second.id, to(second))
            await put_job(store, job)
        async with opened(opener) as store:
            assert store.snapshot().notices == {second.id: second}
            assert store.snapshot().jobs == {job.name: job}

    async def test_changes_of_one_key_are_made_in_order_each_to_the_outcome_before(self, opener: Opener) -> None:
        seen: list[int] = []

        def next_revision(known: ReclaimNotice | None) -> ReclaimNotice:
            seen.append(known.revision if known else 0)
            return replace(notice(1), revision=seen[-1] + 1)

        async with opened(opener) as store:
            results = await asyncio.gather(*(store.put_notice(notice(1).id, next_revision) for _ in range(20)))
        assert seen == list(range(20))
        assert [each.revision for each in results if each] == list(range(1, 21))

    async def test_a_change_that_refuses_itself_concerns_its_caller_alone(self, opener: Opener) -> None:
        def refuse(_known: SupervisedJob | None) -> SupervisedJob:
            raise NameIsLiveError("no")

        async with opened(opener) as store:
            refused, made = await asyncio.gather(
                store.put_job(JobName("job"), refuse),
                store.put_notice(notice(1).id, to(notice(1))),
                return_exceptions=True,
            )
            assert isinstance(refused, NameIsLiveError)
            assert made == notice(1)
            assert set(store.snapshot().notices) == {notice(1).id}

    async def test_what_cannot_be_written_leaves_no_trace(self, opener: Opener) -> None:
        """A value that does not encode is refused, and the commit it would have been in does not show it."""
        broken = replace(notice(1), message=object())  # type: ignore[arg-type]  # That is what is tried.
        async with opened(opener) as store:
            refused, _ = await asyncio.gather(
                store.put_notice(broken.id, to(broken)),
                store.put_notice(notice(2).id, to(notice(2))),
                return_exceptions=True,
            )
            assert isinstance(refused, TypeError)
            assert set(store.snapshot().notices) == {notice(2).id}

    async def test_a_decision_is_stored_only_for_the_generation_that_was_read(self, opener: Opener) -> None:
        job = running_job()
        first = replace(job.decision, generation=6, reason="First.")
        second = replace(job.decision, generation=6, reason="Second.")
        async with opened(opener) as store:
            await put_job(store, job)
            assert await store.decide(job, first)
            assert not await store.decide(job, second)
            assert store.snapshot().jobs[job.name].decision == first

    @pytest.mark.parametrize(
        "later",
        [
            pytest.param(replace(waiting_job(), uid="later"), id="another uid"),
            pytest.param(waiting_job(since=T0 + 60), id="released and registered again"),
        ],
    )
    async def test_a_decision_about_an_earlier_registration_is_not_stored(
        self, opener: Opener, later: SupervisedJob
    ) -> None:
        """Both begin with generation 1."""
        earlier = waiting_job()
        decision = Decision(generation=2, phase=Phase.FINISHED, reason="Over.")
        async with opened(opener) as store:
            await put_job(store, later)
            assert not await store.decide(earlier, decision)
            assert store.snapshot().jobs[later.name] == later
            await put_job(store, replace(later, decision=decision))
            assert not await store.decide(earlier, decision)

    async def test_deciding_about_a_job_that_is_unknown_is_false(self, opener: Opener) -> None:
        async with opened(opener) as store:
            assert not await store.decide(running_job(), running_job().decision)

    async def test_after_its_end_every_change_is_refused(self, opener: Opener) -> None:
        store = await opener()
        running = asyncio.create_task(store.run())
        await store.put_notice(notice(1).id, to(notice(1)))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(StoreUnavailableError, match="closing"):
                await store.put_notice(notice(1).id, to(notice(1)))
        await store.close()

    async def test_a_change_that_waits_while_the_store_ends_is_refused(self, opener: Opener) -> None:
        store = await opener()
        waiting = asyncio.create_task(store.put_notice(notice(1).id, to(notice(1))))
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(StoreUnavailableError):
            await waiting

    async def test_a_watcher_hears_of_every_later_version(self, opener: Opener) -> None:
        """`changed` returns at once for an old version, and otherwise with the next commit."""
        async with opened(opener) as store:
            first = await store.changed(0)
            watching = asyncio.create_task(store.changed(first.version))
            await asyncio.sleep(0)
            assert not watching.done()
            await store.put_notice(notice(1).id, to(notice(1)))
            async with asyncio.timeout(PATIENCE):
                second = await watching
            assert second.version > first.version
            assert second.notices == {notice(1).id: notice(1)}

    async def test_a_change_that_changes_nothing_wakes_nobody(self, opener: Opener) -> None:
        async with opened(opener) as store:
            await store.put_notice(notice(1).id, to(notice(1)))
            version = store.snapshot().version
            assert await store.put_notice(notice(1).id, to(notice(1))) == notice(1)
            assert await store.put_notice(NoticeId("metadata/none"), lambda _known: None) is None
            assert store.snapshot().version == version

    async def test_prune_forgets_what_ended_long_ago_and_nothing_else(self, opener: Opener) -> None:
        ended = replace(notice(1), state=NoticeState.EXPIRED, ended_at=T0)
        late = replace(notice(2), state=NoticeState.GONE, ended_at=T0 + 500)
        over = observing(waiting_job(name="over"), result=Result.SUCCEEDED, ended_at=T0)
        trained_for_long = observing(waiting_job(name="trained"), result=Result.SUCCEEDED, ended_at=T0 + 500)
        of_unknown_end = observing(waiting_job(name="unknown"), result=Result.FAILED)
        live = waiting_job(name="live")
        async with opened(opener) as store:
            for each in (ended, late, notice(3)):
                await store.put_notice(each.id, to(each))
            for job in (over, trained_for_long, of_unknown_end, live):
                await put_job(store, job)
            assert await store.prune(T0 + 100) == 2
        async with opened(opener) as store:
            assert set(store.snapshot().notices) == {late.id, notice(3).id}
            assert set(store.snapshot().jobs) == {trained_for_long.name, of_unknown_end.name, live.name}
