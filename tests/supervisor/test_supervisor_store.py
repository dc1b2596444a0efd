"""The stand-alone store: what it returns is durable, and a change that cannot be made changes nothing."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from supervisor.decide.registration import NameIsLiveError
from supervisor.domain.ids import JobName, NoticeId
from supervisor.domain.job import Decision, Phase, Result, SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.store.interface import NoticeChange, StoreError, StoreUnavailableError
from supervisor.store.sqlite import SqliteStore
from tests.decide.decide_builders import T0, notice, observing, running_job, waiting_job


@contextlib.asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    """A store that commits."""
    store = await SqliteStore.open(path)
    task = asyncio.create_task(store.run())
    try:
        yield store
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await store.close()


def to(value: ReclaimNotice) -> NoticeChange:
    """The change to that value, whatever was there."""
    return lambda _known: value


async def put_job(store: SqliteStore, job: SupervisedJob) -> None:
    """Stores a job as it is."""
    await store.put_job(job.name, lambda _known: job)


def rows_of(path: Path) -> int:
    """The notices that another reader finds in a copy of the store's files, taken now."""
    copy = path.with_name("copy.sqlite")
    for suffix in ("", "-wal"):
        copy.with_name(copy.name + suffix).write_bytes(path.with_name(path.name + suffix).read_bytes())
    with contextlib.closing(sqlite3.connect(copy)) as connection:
        count: int = connection.execute("SELECT count(*) FROM notices").fetchone()[0]
    return count


async def test_a_change_is_durable_before_it_returns(tmp_path: Path) -> None:
    """What a put returned is in the files at that moment, as a crash would leave them."""
    path = tmp_path / "store"
    async with opened(path) as store:
        for number in range(1, 4):
            await store.put_notice(notice(number).id, to(notice(number)))
            assert rows_of(path) == number


async def test_everything_comes_back_after_reopening(tmp_path: Path) -> None:
    """Notices with their newest episode, and jobs with all three parts."""
    second = replace(notice(1), episode=2, first_seen=T0 + 50)
    job = running_job()
    async with opened(tmp_path / "store") as store:
        await store.put_notice(second.id, to(replace(notice(1), state=NoticeState.WITHDRAWN, ended_at=T0 + 9)))
        await store.put_notice(second.id, to(second))
        await put_job(store, job)
    async with opened(tmp_path / "store") as store:
        assert store.snapshot().notices == {second.id: second}
        assert store.snapshot().jobs == {job.name: job}


async def test_changes_that_wait_together_share_a_commit(tmp_path: Path) -> None:
    """The version, which grows with every commit, grows little for many changes."""
    async with opened(tmp_path / "store") as store:
        before = store.snapshot().version
        await asyncio.gather(*(store.put_notice(notice(n).id, to(notice(n))) for n in range(500)))
        assert len(store.snapshot().notices) == 500
        assert store.snapshot().version - before <= 3


async def test_changes_of_one_key_are_made_in_order_each_to_the_outcome_before(tmp_path: Path) -> None:
    """No change is lost and none sees an old value."""
    seen: list[int] = []

    def next_revision(known: ReclaimNotice | None) -> ReclaimNotice:
        seen.append(known.revision if known else 0)
        return replace(notice(1), revision=seen[-1] + 1)

    async with opened(tmp_path / "store") as store:
        results = await asyncio.gather(*(store.put_notice(notice(1).id, next_revision) for _ in range(20)))
    assert seen == list(range(20))
    assert [each.revision for each in results if each] == list(range(1, 21))


async def test_a_change_that_refuses_itself_concerns_its_caller_alone(tmp_path: Path) -> None:
    """The others of the same commit are made."""

    def refuse(_known: SupervisedJob | None) -> SupervisedJob:
        raise NameIsLiveError("no")

    async with opened(tmp_path / "store") as store:
        refused, made = await asyncio.gather(
            store.put_job(JobName("job"), refuse),
            store.put_notice(notice(1).id, to(notice(1))),
            return_exceptions=True,
        )
        assert isinstance(refused, NameIsLiveError)
        assert made == notice(1)
        assert set(store.snapshot().notices) == {notice(1).id}


async def test_what_cannot_be_written_leaves_no_trace(tmp_path: Path) -> None:
    """A value that does not encode is refused, and the commit it would have been in does not show it."""
    broken = replace(notice(1), message=object())  # type: ignore[arg-type]  # That is what is tried.
    async with opened(tmp_path / "store") as store:
        refused, _ = await asyncio.gather(
            store.put_notice(broken.id, to(broken)),
            store.put_notice(notice(2).id, to(notice(2))),
            return_exceptions=True,
        )
        assert isinstance(refused, TypeError)
        assert set(store.snapshot().notices) == {notice(2).id}


async def test_a_decision_is_stored_only_for_the_generation_that_was_read(tmp_path: Path) -> None:
    """A stale reader is told so and changes nothing."""
    job = running_job()
    first = replace(job.decision, generation=6, reason="First.")
    second = replace(job.decision, generation=6, reason="Second.")
    async with opened(tmp_path / "store") as store:
        await put_job(store, job)
        assert await store.decide(job, first)
        assert not await store.decide(job, second)
        assert store.snapshot().jobs[job.name].decision == first


async def test_a_decision_about_an_earlier_job_of_the_name_is_not_stored(tmp_path: Path) -> None:
    """The first generations of two jobs are the same number."""
    earlier = waiting_job()
    later = replace(earlier, uid="later")
    decision = Decision(generation=2, phase=Phase.FINISHED, reason="Over.")
    async with opened(tmp_path / "store") as store:
        await put_job(store, later)
        assert not await store.decide(earlier, decision)
        assert store.snapshot().jobs[later.name] == later
        await put_job(store, replace(later, decision=decision))
        assert not await store.decide(earlier, decision)


async def test_deciding_about_a_job_that_is_unknown_is_false(tmp_path: Path) -> None:
    """It was forgotten meanwhile."""
    async with opened(tmp_path / "store") as store:
        assert not await store.decide(running_job(), running_job().decision)


async def test_a_second_opener_is_refused(tmp_path: Path) -> None:
    """One file has one owner."""
    async with opened(tmp_path / "store"):
        with pytest.raises(StoreError, match="locked"):
            await SqliteStore.open(tmp_path / "store")
    async with opened(tmp_path / "store"):
        pass


async def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    """An old version must not write into what a newer one made."""
    path = tmp_path / "store"
    async with opened(path):
        pass
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="newer version"):
        await SqliteStore.open(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (99,)


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
async def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """It is an error for the operator, and the file is not overwritten."""
    path = tmp_path / "store"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="cannot open the store"):
        await SqliteStore.open(path)
    assert path.read_bytes() == content


async def test_a_row_that_does_not_decode_is_refused(tmp_path: Path) -> None:
    """Half a memory would be worse than none."""
    path = tmp_path / "store"
    async with opened(path) as store:
        await store.put_notice(notice(1).id, to(notice(1)))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE notices SET body = ?", (b"{}",))
    with pytest.raises(StoreError, match="does not decode"):
        await SqliteStore.open(path)


async def test_a_path_that_cannot_be_a_file_is_refused(tmp_path: Path) -> None:
    """As any other file that cannot be used."""
    (tmp_path / "store").mkdir()
    with pytest.raises(StoreError):
        await SqliteStore.open(tmp_path / "store")


async def test_a_full_disk_refuses_the_change_and_keeps_the_old_state(tmp_path: Path) -> None:
    """The caller learns that it is not durable; once there is room, the next change is made."""
    many = observing(running_job(), hosts=frozenset(f"host-{n:05}" for n in range(5000)))
    async with opened(tmp_path / "store") as store:
        await store.put_notice(notice(1).id, to(notice(1)))
        before = store.snapshot()
        pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreUnavailableError, match="full"):
            await put_job(store, many)
        assert store.snapshot() is before
        store._connection.execute("PRAGMA max_page_count = 100000")
        await put_job(store, many)
        assert store.snapshot().jobs == {many.name: many}
    async with opened(tmp_path / "store") as store:
        assert store.snapshot().notices == before.notices
        assert store.snapshot().jobs == {many.name: many}


async def test_after_its_end_every_change_is_refused(tmp_path: Path) -> None:
    """Nobody waits for a commit that will never come."""
    store = await SqliteStore.open(tmp_path / "store")
    running = asyncio.create_task(store.run())
    await store.put_notice(notice(1).id, to(notice(1)))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    async with asyncio.timeout(1):
        with pytest.raises(StoreUnavailableError, match="closing"):
            await store.put_notice(notice(1).id, to(notice(1)))
    await store.close()


async def test_a_change_that_waits_while_the_store_ends_is_refused(tmp_path: Path) -> None:
    """Its caller may not believe that it is durable."""
    store = await SqliteStore.open(tmp_path / "store")
    waiting = asyncio.create_task(store.put_notice(notice(1).id, to(notice(1))))
    await asyncio.sleep(0)
    await store.close()
    with pytest.raises(StoreUnavailableError):
        await waiting


async def test_a_watcher_hears_of_every_later_version(tmp_path: Path) -> None:
    """`changed` returns at once for an old version, and otherwise with the next commit."""
    async with opened(tmp_path / "store") as store:
        first = await store.changed(0)
        watching = asyncio.create_task(store.changed(first.version))
        await asyncio.sleep(0)
        assert not watching.done()
        await store.put_notice(notice(1).id, to(notice(1)))
        async with asyncio.timeout(1):
            second = await watching
        assert second.version > first.version
        assert second.notices == {notice(1).id: notice(1)}


async def test_a_change_that_changes_nothing_wakes_nobody(tmp_path: Path) -> None:
    """A repeated report costs no commit."""
    async with opened(tmp_path / "store") as store:
        await store.put_notice(notice(1).id, to(notice(1)))
        version = store.snapshot().version
        assert await store.put_notice(notice(1).id, to(notice(1))) == notice(1)
        assert await store.put_notice(NoticeId("metadata/none"), lambda _known: None) is None
        assert store.snapshot().version == version


async def test_prune_forgets_what_ended_long_ago_and_nothing_else(tmp_path: Path) -> None:
    """Live notices and jobs stay, however old."""
    path = tmp_path / "store"
    ended = replace(notice(1), state=NoticeState.EXPIRED, ended_at=T0)
    late = replace(notice(2), state=NoticeState.GONE, ended_at=T0 + 500)
    over = observing(waiting_job(name="over"), result=Result.SUCCEEDED)
    live = waiting_job(name="live")
    async with opened(path) as store:
        for each in (ended, late, notice(3)):
            await store.put_notice(each.id, to(each))
        await put_job(store, over)
        await put_job(store, live)
        assert await store.prune(T0 + 100) == 2
    async with opened(path) as store:
        assert set(store.snapshot().notices) == {late.id, notice(3).id}
        assert set(store.snapshot().jobs) == {live.name}
