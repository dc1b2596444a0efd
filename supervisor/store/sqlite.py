"""The stand-alone store: one SQLite file that one thread writes, with group commit.

Changes that arrive during a commit share the next one, so that 2,500 notices at once take a few commits instead of
2,500. Reads come from memory and show durable state only.
"""

import asyncio
import os
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, TypeVar, TypeVarTuple, cast

import structlog

from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from servicekit.files import draft_beside
from servicekit.text import one_line
from supervisor.domain.ids import JobName, NoticeId
from supervisor.domain.job import Decision, SupervisedJob, ended_before
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.failpoints import At
from supervisor.store import rows
from supervisor.store.interface import (
    JobChange,
    NoticeChange,
    Snapshot,
    StoreError,
    StoreUnavailableError,
    decided_since,
)

_MAX_PER_COMMIT = 1000
_STEP_SECONDS = 1.0
"""A smaller step of the system's clock is not logged."""

_log = structlog.get_logger()

R = TypeVar("R")
P = TypeVarTuple("P")


@dataclass(slots=True)
class _Draft:
    """The next snapshot, and the writes that lead to it."""

    notices: dict[NoticeId, ReclaimNotice]
    jobs: dict[JobName, SupervisedJob]
    writes: list[rows.Write]


@dataclass(frozen=True, slots=True)
class _Pending:
    """A change that waits for its commit; `apply` changes the draft and returns the caller's result."""

    apply: Callable[[_Draft], object]
    done: asyncio.Future[object]


class SqliteStore:
    """See `supervisor.store.interface.Store`. Open with `open`, let `run` run, end with `close`."""

    def __init__(self, connection: sqlite3.Connection, thread: ThreadPoolExecutor, snapshot: Snapshot) -> None:
        self._connection = connection
        self._thread = thread
        self._snapshot = snapshot
        self._queue: asyncio.Queue[_Pending] = asyncio.Queue()
        self._news = asyncio.Condition()
        self._closed = False
        self.unread: Mapping[str, int] = {}
        """How many rows of each table did not decode when the file was opened."""

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Opens the file, or creates it.

        Raises:
            StoreError: The file is damaged, from a newer version, or in use by another supervisor.
        """
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        try:
            connection, contents = await asyncio.get_running_loop().run_in_executor(thread, _open, path)
        except BaseException:
            thread.shutdown()
            raise
        store = cls(connection, thread, Snapshot(1, contents.notices, contents.jobs))
        counts = Counter(row.table for row in contents.unread)
        store.unread = {table: counts[table] for table in ("notices", "jobs")}
        return store

    async def continue_clock(self, clock: Clock) -> None:
        """Moves the clock so that it continues the one that counted the stored instants, if that was in the same boot.

        To be called before anything reads the clock. While nothing is active, no instant matters, and the clock stays
        as it is.
        """
        try:
            await self._in_thread(_continue_clock, self._connection, clock, self._active)
        except sqlite3.Error as error:
            _log.warning("clock.not_kept", why=str(error))

    @property
    def _active(self) -> bool:
        notices, jobs = self._snapshot.notices.values(), self._snapshot.jobs.values()
        return any(each.state is NoticeState.ACTIVE for each in notices) or any(not each.over for each in jobs)

    async def close(self) -> None:
        """Closes the file; changes that still wait are refused."""
        self._refuse_all()
        await self._in_thread(self._connection.close)
        self._thread.shutdown()

    async def run(self) -> None:
        """Root task: commits changes; once it has ended, every change is refused."""
        try:
            while True:
                await self.commit_once()
        finally:
            self._refuse_all()

    async def commit_once(self) -> None:
        """Waits for a change and commits it together with all that have arrived by then."""
        batch = [await self._queue.get()]
        while not self._queue.empty() and len(batch) < _MAX_PER_COMMIT:
            batch.append(self._queue.get_nowait())
        try:
            await self._commit(batch)
        except asyncio.CancelledError:
            for pending in batch:
                _refuse(pending, "the store is closing")
            raise

    async def put_notice(self, key: NoticeId, change: NoticeChange) -> ReclaimNotice | None:
        def apply(draft: _Draft) -> ReclaimNotice | None:
            known = draft.notices.get(key)
            notice = change(known)
            if notice is not None and notice != known:
                draft.writes.extend(rows.notice_writes(notice))
                draft.notices[key] = notice
            return notice

        return cast("ReclaimNotice | None", await self._submit(apply))

    async def put_job(self, name: JobName, change: JobChange) -> SupervisedJob | None:
        def apply(draft: _Draft) -> SupervisedJob | None:
            known = draft.jobs.get(name)
            job = change(known)
            if job is not None and job != known:
                draft.writes.append(rows.job_write(job))
                draft.jobs[name] = job
            return job

        return cast("SupervisedJob | None", await self._submit(apply))

    async def decide(self, read: SupervisedJob, decision: Decision) -> bool:
        def change(job: SupervisedJob | None) -> SupervisedJob | None:
            if job is None or decided_since(read, job):
                return job
            return replace(job, decision=decision)

        job = await self.put_job(read.name, change)
        return job is not None and job.id == read.id and job.decision == decision

    def snapshot(self) -> Snapshot:
        return self._snapshot

    async def changed(self, since: int) -> Snapshot:
        async with self._news:
            await self._news.wait_for(lambda: self._snapshot.version > since)
        return self._snapshot

    async def forget_job(self, name: JobName, uid: str) -> None:
        def apply(draft: _Draft) -> None:
            if name in draft.jobs and draft.jobs[name].uid == uid:
                del draft.jobs[name]
                draft.writes.append(rows.job_deletion(name))

        await self._submit(apply)

    async def prune(self, before: float) -> int:
        def apply(draft: _Draft) -> int:
            notices = [key for key, notice in draft.notices.items() if (notice.ended_at or before) < before]
            jobs = [name for name, job in draft.jobs.items() if ended_before(job, before)]
            for key in notices:
                del draft.notices[key]
            for name in jobs:
                del draft.jobs[name]
            draft.writes.extend(rows.ended_deletions(before, jobs))
            return len(notices) + len(jobs)

        return cast("int", await self._submit(apply))

    def _refuse_all(self) -> None:
        self._closed = True
        while not self._queue.empty():
            _refuse(self._queue.get_nowait(), "the store is closing")

    async def _submit(self, apply: Callable[[_Draft], object]) -> object:
        if self._closed:
            raise StoreUnavailableError("the store is closing")
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_Pending(apply, done))
        return await done

    async def _commit(self, batch: list[_Pending]) -> None:
        draft = _Draft(dict(self._snapshot.notices), dict(self._snapshot.jobs), [])
        outcomes = [(pending, *_try(pending, draft)) for pending in batch]
        if draft.writes:
            try:
                await self._in_thread(_write, self._connection, draft.writes)
            except sqlite3.Error as error:
                for pending in batch:
                    _refuse(pending, f"cannot write: {error}", error)
                return
            await self._publish(Snapshot(self._snapshot.version + 1, draft.notices, draft.jobs))
            failpoint(At.STORE_PUBLISHED)
        for pending, result, refusal in outcomes:
            _settle(pending, result, refusal)

    async def _publish(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        async with self._news:
            self._news.notify_all()

    def _in_thread(self, function: Callable[[*P], R], *arguments: *P) -> Awaitable[R]:
        return asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


def _try(pending: _Pending, draft: _Draft) -> tuple[object, Exception | None]:
    try:
        return pending.apply(draft), None
    except Exception as refusal:  # noqa: BLE001 - a change that refuses itself concerns its caller alone
        return None, refusal


def _settle(pending: _Pending, result: object, refusal: Exception | None) -> None:
    if pending.done.done():
        return
    if refusal is None:
        pending.done.set_result(result)
    else:
        pending.done.set_exception(refusal)


def _refuse(pending: _Pending, reason: str, cause: Exception | None = None) -> None:
    error = StoreUnavailableError(reason)
    error.__cause__ = cause
    _settle(pending, None, error)


def _open(path: Path) -> tuple[sqlite3.Connection, rows.ReadRows]:
    try:
        if not path.exists():
            _create(path)
        _check_not_empty(path)
        _make_private(path)
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)
        return connection, _read(connection)
    except (sqlite3.Error, rows.UnreadableError) as error:
        raise StoreError(f"cannot open the store {path}: {_explained(error, path)}") from error


def _create(path: Path) -> None:
    """Creates a store in another file and links it into place: an interrupted first start leaves no empty store."""
    with draft_beside(path) as file:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            rows.create(connection)
        failpoint(At.STORE_PREPARED)
        with suppress(FileExistsError):  # If another process was first, its store counts.
            path.hardlink_to(file)
        failpoint(At.STORE_LINKED)


def _check_not_empty(path: Path) -> None:
    """Refuses an empty file: SQLite would take it for a new store and discard the log beside it."""
    if path.stat().st_size == 0:
        raise rows.UnreadableError("it is damaged: it is empty. Remove it to begin with nothing known")


def _make_private(path: Path) -> None:
    """Tightens the mode of files that older versions made; SQLite gives it to the files beside the store."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        file = path.with_name(path.name + suffix)
        try:
            if file.stat().st_mode & 0o077:
                file.chmod(0o600)
        except FileNotFoundError:
            continue
        except OSError as error:
            _log.warning("store.readable_by_others", file=str(file), why=error.strerror)


def _explained(error: Exception, path: Path) -> str:
    """Explains an error where SQLite's own message does not say what to do."""
    code = error.sqlite_errorcode & 0xFF if isinstance(error, sqlite3.Error) else None
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return (
            f"already served by another supervisor. Only one may serve from {path.parent}: end that one, or choose "
            "another directory with JOB_SUPERVISOR_DATA_DIR"
        )
    if code is not None and os.statvfs(path.parent).f_flag & os.ST_RDONLY:
        return "its file system is read-only"
    return str(error)


def _read(connection: sqlite3.Connection) -> rows.ReadRows:
    try:
        rows.prepare(connection)
        contents = rows.read(connection)
    except BaseException:
        connection.close()
        raise
    for row in contents.unread:
        _log.warning("store.row_unread", table=row.table, row="/".join(map(str, row.key)), reason=one_line(row.reason))
    return contents


def _continue_clock(connection: sqlite3.Connection, clock: Clock, active: bool) -> None:  # noqa: FBT001 - internal
    now, kept = clock.boot_time, rows.boot_time(connection)
    if kept is None or not active or not kept.boot or kept.boot != now.boot:
        rows.set_boot_time(connection, now)
        return
    clock.move(kept.at - now.at)
    if abs(kept.at - now.at) > _STEP_SECONDS:
        _log.warning("clock.stepped", seconds=round(now.at - kept.at, 1))


def _write(connection: sqlite3.Connection, writes: list[rows.Write]) -> None:
    failpoint(At.STORE_BEGINS)
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement, values in writes:
            connection.execute(statement, values)
        failpoint(At.STORE_WRITTEN)
        connection.execute("COMMIT")
        failpoint(At.STORE_COMMITTED)
    except BaseException:
        # After a full disk, SQLite has rolled back already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
