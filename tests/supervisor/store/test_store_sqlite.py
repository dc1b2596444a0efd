"""The stand-alone store: what it returns is durable, and a change that cannot be made changes nothing."""

import asyncio
import contextlib
import os
import shutil
import sqlite3
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from servicekit.clock import BootTime, Clock
from supervisor.domain.ids import JobName
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.store.interface import StoreError, StoreUnavailableError
from supervisor.store.sqlite import SqliteStore
from tests.supervisor.decide.decide_builders import T0, notice, observing, running_job, waiting_job
from tests.supervisor.store.store_behaviour import Opener, StoreBehaviour, opened, put_job, to


class TestSqlite(StoreBehaviour):
    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return lambda: SqliteStore.open(tmp_path / "store")


def sqlite(path: Path) -> AbstractAsyncContextManager[SqliteStore]:
    return opened(lambda: SqliteStore.open(path))


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
    async with sqlite(path) as store:
        for number in range(1, 4):
            await store.put_notice(notice(number).id, to(notice(number)))
            assert rows_of(path) == number


async def test_changes_that_wait_together_share_a_commit(tmp_path: Path) -> None:
    async with sqlite(tmp_path / "store") as store:
        before = store.snapshot().version
        await asyncio.gather(*(store.put_notice(notice(n).id, to(notice(n))) for n in range(500)))
        assert len(store.snapshot().notices) == 500
        assert store.snapshot().version - before <= 3


async def _counted(path: Path, set_by: float, boot: str = "boot-1") -> float:
    """By how much a clock is moved when its supervisor begins, where the system's was set by so much."""
    clock = _BootClock(set_by, boot)
    async with sqlite(path) as store:
        before = clock.boot_time.at
        await store.continue_clock(clock)
    return clock.boot_time.at - before


class _BootClock(Clock):
    """Of a machine whose boots have names of the test's own."""

    def __init__(self, set_by: float, boot: str) -> None:
        super().__init__()
        self.boot = boot
        self.move(set_by)

    @property
    def boot_time(self) -> BootTime:
        return BootTime(self.boot, super().boot_time.at)


@pytest.mark.parametrize("under_way", [notice(1), running_job()], ids=["notice", "job"])
async def test_instants_are_counted_as_they_were_within_a_boot(
    tmp_path: Path, under_way: ReclaimNotice | SupervisedJob
) -> None:
    """A set clock moves nothing that is under way, however often the supervisor begins again."""
    path = tmp_path / "store"
    assert await _counted(path, 0) == 0
    async with sqlite(path) as store:
        if isinstance(under_way, ReclaimNotice):
            await store.put_notice(under_way.id, to(under_way))
        else:
            await put_job(store, under_way)
    assert await _counted(path, 600) == pytest.approx(-600, abs=0.1)
    assert await _counted(path, -7200) == pytest.approx(7200, abs=0.1)


@pytest.mark.parametrize("second_boot", ["boot-2", ""])
async def test_another_boot_goes_by_the_systems_clock(tmp_path: Path, second_boot: str) -> None:
    """So does a machine that does not tell its boots apart; and what counts from there on is the new one."""
    path = tmp_path / "store"
    await _counted(path, 0)
    async with sqlite(path) as store:
        await store.put_notice(notice(1).id, to(notice(1)))
    assert await _counted(path, 600, second_boot) == 0
    assert await _counted(path, 0) == 0


async def test_a_clock_that_was_wrong_is_put_right_when_nothing_is_under_way(tmp_path: Path) -> None:
    path = tmp_path / "store"
    await _counted(path, 600)
    async with sqlite(path) as store:
        ended = notice(1, state=NoticeState.GONE)
        await store.put_notice(ended.id, to(ended))
    assert await _counted(path, 0) == 0


async def test_a_second_opener_is_refused(tmp_path: Path) -> None:
    async with sqlite(tmp_path / "store"):
        with pytest.raises(StoreError, match="already served by another supervisor"):
            await SqliteStore.open(tmp_path / "store")
    async with sqlite(tmp_path / "store"):
        pass


async def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store"
    async with sqlite(path):
        pass
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="newer version"):
        await SqliteStore.open(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (99,)


async def test_notices_of_the_version_before_are_kept_under_their_present_ids(tmp_path: Path) -> None:
    """Whose rows hold an id without the subject's name; a change then replaces its row and makes no second one."""
    path, ended = tmp_path / "store", replace(notice(1), state=NoticeState.WITHDRAWN, ended_at=T0)
    second = replace(notice(1), episode=2, revision=2)
    async with sqlite(path) as store:
        for each in (ended, second, notice(2)):
            await store.put_notice(each.id, to(each))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE notices SET id = 'metadata/' || substr(id, length('metadata/n1/') + 1)")
        connection.execute("PRAGMA user_version = 1")
    for revision in (3, 4):
        async with sqlite(path) as store:
            known = store.snapshot().notices
            assert set(known) == {second.id, notice(2).id}
            assert known[second.id].episode == 2
            await store.put_notice(second.id, to(replace(second, revision=revision)))
            assert rows_of(path) == 3


async def test_a_row_of_the_version_before_that_does_not_decode_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    async with sqlite(path) as store:
        await store.put_notice(notice(1).id, to(notice(1)))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE notices SET body = ?", (b"{}",))
        connection.execute("PRAGMA user_version = 1")
    with pytest.raises(StoreError, match="does not decode"):
        await SqliteStore.open(path)
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT id FROM notices").fetchall() == [(notice(1).id,)]
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)


@pytest.mark.parametrize("content", [b"not a database at all" * 100, b"SQLite format 3\0" + b"\xff" * 4096])
async def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """It is an error for the operator, and the file is not overwritten."""
    path = tmp_path / "store"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="cannot open the store"):
        await SqliteStore.open(path)
    assert path.read_bytes() == content


async def test_an_emptied_file_is_refused_and_a_missing_one_is_made(tmp_path: Path) -> None:
    """An empty file has lost what was in it; not a byte of what lies beside it is touched."""
    path = tmp_path / "store"
    async with sqlite(path) as store:
        await store.put_notice(notice(1).id, to(notice(1)))
        log = path.with_name("store-wal").read_bytes()
    path.write_bytes(b"")
    path.with_name("store-wal").write_bytes(log)
    with pytest.raises(StoreError, match="it is empty"):
        await SqliteStore.open(path)
    assert path.with_name("store-wal").read_bytes() == log
    path.unlink()
    path.with_name("store-wal").unlink()
    async with sqlite(path) as store:
        assert store.snapshot().notices == {}
    assert list(_modes(tmp_path)) == ["store"]


async def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    """Whatever the umask and the mode of its directory; files of older versions are tightened."""
    before = os.umask(0)
    try:
        async with sqlite(tmp_path / "store") as store:
            await store.put_notice(notice(1).id, to(notice(1)))
            assert _modes(tmp_path) == {"store": 0o600, "store-wal": 0o600}
            for name in _modes(tmp_path):
                shutil.copy(tmp_path / name, tmp_path / f"old-{name}")
                (tmp_path / f"old-{name}").chmod(0o644)
        async with sqlite(tmp_path / "old-store") as store:
            assert len(store.snapshot().notices) == 1
            assert {mode for name, mode in _modes(tmp_path).items() if name.startswith("old-")} == {0o600}
    finally:
        os.umask(before)


def _modes(directory: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mode & 0o777 for file in directory.iterdir()}


async def test_a_row_that_does_not_decode_is_set_aside_and_hides_no_other(tmp_path: Path) -> None:
    """It is named and kept for people, and not overwritten by what is reported again."""
    path, strange = tmp_path / "store", waiting_job(name="strange")
    async with sqlite(path) as store:
        for number in (1, 2):
            await store.put_notice(notice(number).id, to(notice(number)))
        for job in (strange, waiting_job(name="plain")):
            await put_job(store, job)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE notices SET body = ? WHERE id = ?", (b"{}", notice(1).id))
        connection.execute("UPDATE jobs SET decision = ? WHERE name = ?", (b'{"phase": "Flying"}', strange.name))
    with capture_logs() as logs:
        async with sqlite(path) as store:
            assert (set(store.snapshot().notices), set(store.snapshot().jobs)) == ({notice(2).id}, {JobName("plain")})
            assert store.unread == {"notices": 1, "jobs": 1}
            await store.put_notice(notice(1).id, to(notice(1)))
            await put_job(store, strange)
    assert [(each["event"], each["row"]) for each in logs] == [
        ("store.row_unread", f"{notice(1).id}/1"),
        ("store.row_unread", "strange"),
    ]
    async with sqlite(path) as store:
        assert (len(store.snapshot().notices), len(store.snapshot().jobs)) == (2, 2)
        assert store.unread == {"notices": 0, "jobs": 0}
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT body FROM unread_notices").fetchall() == [(b"{}",)]
        assert connection.execute("SELECT name, decision FROM unread_jobs").fetchall() == [
            ("strange", b'{"phase": "Flying"}')
        ]


async def test_a_path_that_cannot_be_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    with pytest.raises(StoreError):
        await SqliteStore.open(tmp_path / "store")


async def test_a_full_disk_refuses_the_change_and_keeps_the_old_state(tmp_path: Path) -> None:
    """The caller learns that it is not durable; once there is room, the next change is made."""
    many = observing(running_job(), hosts=frozenset(f"host-{n:05}" for n in range(5000)))
    async with sqlite(tmp_path / "store") as store:
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
    async with sqlite(tmp_path / "store") as store:
        assert store.snapshot().notices == before.notices
        assert store.snapshot().jobs == {many.name: many}
