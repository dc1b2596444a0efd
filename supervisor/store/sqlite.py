"""The stand-alone store: one SQLite file that one thread writes, with group commit.

Changes that arrive during a commit share the next one, so that 2,500 notices at once take a few commits instead of
2,500. Reads come from memory and show durable state only. Each value is stored whole, as the JSON of its dataclass.
"""

import asyncio
import os
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar, TypeVarTuple, cast

import msgspec
import structlog

from servicekit.bounds import one_line
from servicekit.clock import BootTime, Clock
from servicekit.failpoints import failpoint
from servicekit.files import draft_beside
from supervisor.domain.ids import JobName, NoticeId
from supervisor.domain.job import Decision, Observed, SupervisedJob, ended_before
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.failpoints import At
from supervisor.store.interface import (
    MAX_EPISODES,
    JobChange,
    NoticeChange,
    Snapshot,
    StoreError,
    StoreUnavailableError,
    decided_since,
)
from supervisor.store.migrations import migrate_notice_ids, spec_fields, stored_job

_VERSION = 2
_TABLES = (
    """CREATE TABLE notices (
        id TEXT NOT NULL, episode INTEGER NOT NULL, ended_at REAL, body BLOB NOT NULL,
        PRIMARY KEY (id, episode)) STRICT, WITHOUT ROWID""",
    """CREATE TABLE jobs (
        name TEXT NOT NULL PRIMARY KEY, uid TEXT NOT NULL,
        spec BLOB NOT NULL, observed BLOB NOT NULL, decision BLOB NOT NULL) STRICT, WITHOUT ROWID""",
)
_BOOT_TIME = (
    "CREATE TABLE IF NOT EXISTS boot_time (one INTEGER PRIMARY KEY, boot TEXT NOT NULL, at REAL NOT NULL) STRICT"
)
"""This table is not created with the others, because earlier versions made files without it."""

_KEYS = {"notices": "id = ? AND episode = ?", "jobs": "name = ?"}

_MAX_PER_COMMIT = 1000
_STEP_SECONDS = 1.0
"""A smaller step of the system's clock is not logged."""

_log = structlog.get_logger()
_encoder = msgspec.json.Encoder(order="deterministic")

R = TypeVar("R")
P = TypeVarTuple("P")

_Write = tuple[str, Sequence[object]]
"""A statement and its parameters."""


class _UnusableFileError(Exception):
    """This version cannot use the file."""


@dataclass(slots=True)
class _Draft:
    """The next snapshot, and the writes that lead to it."""

    notices: dict[NoticeId, ReclaimNotice]
    jobs: dict[JobName, SupervisedJob]
    writes: list[_Write]


@dataclass(frozen=True, slots=True)
class _PendingDraft:
    """A change that waits for its commit; `apply` changes the draft and returns the caller's result."""

    apply: Callable[[_Draft], object]
    done: asyncio.Future[object]


class SqliteStore:
    """Implements `Store` with an SQLite file. The caller opens it with `open`, runs `run`, and ends it with `close`.

    Attributes:
        unread: How many rows of each table did not decode when the file was opened.
    """

    def __init__(self, connection: sqlite3.Connection, thread: ThreadPoolExecutor, snapshot: Snapshot) -> None:
        self._connection = connection
        self._thread = thread
        self._snapshot = snapshot
        self._queue: asyncio.Queue[_PendingDraft] = asyncio.Queue()
        self._news = asyncio.Condition()
        self._closed = False
        self.unread: Mapping[str, int] = {}

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Opens the file, or creates it.

        Raises:
            StoreError: The file is damaged, from a newer version, or in use by another supervisor.
        """
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        try:
            connection, snapshot, unread = await asyncio.get_running_loop().run_in_executor(thread, _open, path)
        except BaseException:
            thread.shutdown()
            raise
        store = cls(connection, thread, snapshot)
        store.unread = {table: unread[table] for table in _KEYS}
        return store

    async def continue_clock(self, clock: Clock) -> None:
        """Moves the clock so that it continues the clock of the stored instants, if the machine has not booted since.

        To be called before anything reads the clock. While nothing is active, no instant matters, and the clock stays
        as it is.
        """
        notices, jobs = self._snapshot.notices.values(), self._snapshot.jobs.values()
        active = any(each.state is NoticeState.ACTIVE for each in notices) or any(not each.over for each in jobs)
        try:
            await self._in_thread(_continue_clock, self._connection, clock, active)
        except sqlite3.Error as error:
            _log.warning("clock.not_kept", why=str(error))

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
                _settle(pending, StoreUnavailableError("the store is closing"))
            raise

    async def put_notice(self, key: NoticeId, change: NoticeChange) -> ReclaimNotice | None:
        def apply(draft: _Draft) -> ReclaimNotice | None:
            known = draft.notices.get(key)
            notice = change(known)
            if notice is not None and notice != known:
                statement = "INSERT OR REPLACE INTO notices (id, episode, ended_at, body) VALUES (?, ?, ?, ?)"
                row = (notice.id, notice.episode, notice.ended_at, _encoder.encode(notice))
                draft.writes.append((statement, row))
                if notice.episode > MAX_EPISODES:
                    # A source that announces and withdraws without end must not fill the disk until the retention ends.
                    outlived = notice.episode - MAX_EPISODES
                    draft.writes.append(("DELETE FROM notices WHERE id = ? AND episode = ?", (notice.id, outlived)))
                draft.notices[key] = notice
            return notice

        return cast("ReclaimNotice | None", await self._submit(apply))

    async def put_job(self, name: JobName, change: JobChange) -> SupervisedJob | None:
        def apply(draft: _Draft) -> SupervisedJob | None:
            known = draft.jobs.get(name)
            job = change(known)
            if job is not None and job != known:
                statement = "INSERT OR REPLACE INTO jobs (name, uid, spec, observed, decision) VALUES (?, ?, ?, ?, ?)"
                parts = [_encoder.encode(part) for part in (spec_fields(job.spec), job.observed, job.decision)]
                draft.writes.append((statement, (job.name, job.uid, *parts)))
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
                draft.writes.append(("DELETE FROM jobs WHERE name = ?", (name,)))

        await self._submit(apply)

    async def prune(self, before: float) -> int:
        def apply(draft: _Draft) -> int:
            notices = [key for key, notice in draft.notices.items() if (notice.ended_at or before) < before]
            jobs = [name for name, job in draft.jobs.items() if ended_before(job, before)]
            draft.writes.append(("DELETE FROM notices WHERE ended_at < ?", (before,)))
            for key in notices:
                del draft.notices[key]
            for name in jobs:
                del draft.jobs[name]
                draft.writes.append(("DELETE FROM jobs WHERE name = ?", (name,)))
            return len(notices) + len(jobs)

        return cast("int", await self._submit(apply))

    async def _submit(self, apply: Callable[[_Draft], object]) -> object:
        if self._closed:
            raise StoreUnavailableError("the store is closing")
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait(_PendingDraft(apply, done))
        return await done

    async def _commit(self, batch: Sequence[_PendingDraft]) -> None:
        draft = _Draft(dict(self._snapshot.notices), dict(self._snapshot.jobs), [])
        outcomes = list[object]()
        for pending in batch:
            try:
                outcomes.append(pending.apply(draft))
            except Exception as refusal:  # noqa: BLE001 - a change that refuses itself concerns its caller alone
                outcomes.append(refusal)
        if draft.writes:
            try:
                await self._in_thread(_write, self._connection, draft.writes)
            except sqlite3.Error as error:
                for pending in batch:
                    unavailable = StoreUnavailableError(f"cannot write: {error}")
                    unavailable.__cause__ = error
                    _settle(pending, unavailable)
                return
            self._snapshot = Snapshot(self._snapshot.version + 1, draft.notices, draft.jobs)
            async with self._news:
                self._news.notify_all()
            failpoint(At.STORE_PUBLISHED)
        for pending, outcome in zip(batch, outcomes, strict=True):
            _settle(pending, outcome)

    def _refuse_all(self) -> None:
        self._closed = True
        while not self._queue.empty():
            _settle(self._queue.get_nowait(), StoreUnavailableError("the store is closing"))

    def _in_thread(self, function: Callable[[*P], R], *arguments: *P) -> Awaitable[R]:
        return asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)


def _settle(pending: _PendingDraft, outcome: object) -> None:
    """Ends the wait of the change's caller with the outcome, which may be an error."""
    if pending.done.done():
        return
    if isinstance(outcome, Exception):
        pending.done.set_exception(outcome)
    else:
        pending.done.set_result(outcome)


def _open(path: Path) -> tuple[sqlite3.Connection, Snapshot, Counter[str]]:
    """Returns the connection, the stored state, and the number of undecodable rows of each table."""
    try:
        if not path.exists():
            _create(path)
        _check_file(path)
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1.0)
        try:
            _prepare(connection)
            snapshot, unread = _read(connection)
        except BaseException:
            connection.close()
            raise
    except (sqlite3.Error, _UnusableFileError) as error:
        raise StoreError(f"cannot open the store {path}: {_explained(error, path)}") from error
    return connection, snapshot, unread


def _create(path: Path) -> None:
    """Creates a store in another file and links it into place. An interrupted first start leaves no empty store."""
    with draft_beside(path) as file:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            for table in _TABLES:
                connection.execute(table)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            connection.execute("COMMIT")
        failpoint(At.STORE_PREPARED)
        with suppress(FileExistsError):  # If another process was first, its store counts.
            path.hardlink_to(file)
        failpoint(At.STORE_LINKED)


def _check_file(path: Path) -> None:
    """Refuses an empty file, and tightens the mode of files that older versions made."""
    if path.stat().st_size == 0:
        # SQLite would take it for a new store and discard the log beside it.
        raise _UnusableFileError("it is damaged: it is empty. Remove it to begin with nothing known")
    # SQLite gives the mode of the store to the files beside it.
    for suffix in ("", "-wal", "-shm", "-journal"):
        file = path.with_name(path.name + suffix)
        try:
            if file.stat().st_mode & 0o077:
                file.chmod(0o600)
        except FileNotFoundError:
            continue
        except OSError as error:
            _log.warning("store.readable_by_others", file=str(file), why=error.strerror)


def _prepare(connection: sqlite3.Connection) -> None:
    """Locks a file, checks it and migrates it to the present version.

    Raises:
        _UnusableFileError: A newer version wrote the file, or it is damaged.
        sqlite3.Error: It is damaged, or another process has it open.
    """
    # A second supervisor on the same file fails here, not in the middle of a reclaim.
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    # Before any write: a lost page may read as an empty table. This takes about 10 ms for 10 MB.
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise _UnusableFileError(f"it is damaged: {verdict}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN EXCLUSIVE")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 1:
        try:
            migrate_notice_ids(connection)
        except msgspec.MsgspecError as error:
            raise _UnusableFileError(f"a row does not decode: {error}") from error
        connection.execute(f"PRAGMA user_version = {_VERSION}")
    connection.execute("COMMIT")
    if version == 0:
        raise _UnusableFileError("it is damaged: no store has been made in it")
    if version > _VERSION:
        raise _UnusableFileError(f"it was written by a newer version (schema {version}, this one knows {_VERSION})")


def _read(connection: sqlite3.Connection) -> tuple[Snapshot, Counter[str]]:
    """Reads the newest episode of every notice, and every job.

    It sets aside rows that cannot be decoded, and counts them.

    One row of another version must not keep everybody's supervisor from starting. The agent or the launcher that the
    row is of reports again, and its new row must not overwrite what nobody has understood. Rows that are set aside stay
    for people in the tables `unread_notices` and `unread_jobs`.
    """
    notices, jobs = dict[NoticeId, ReclaimNotice](), dict[JobName, SupervisedJob]()
    unread = list[tuple[str, tuple[object, ...], str]]()
    for key, episode, body in connection.execute("SELECT id, episode, body FROM notices ORDER BY id, episode"):
        try:
            notice = msgspec.json.decode(body, type=ReclaimNotice)
            notices[notice.id] = notice
        except msgspec.MsgspecError as error:
            unread.append(("notices", (key, episode), f"a row does not decode: {error}"))
    for name, uid, spec, observed, decision in connection.execute(
        "SELECT name, uid, spec, observed, decision FROM jobs"
    ):
        try:
            jobs[JobName(name)] = stored_job(
                JobName(name),
                uid,
                msgspec.json.decode(spec, type=dict[str, Any]),
                msgspec.json.decode(observed, type=Observed),
                msgspec.json.decode(decision, type=Decision),
            )
        except (msgspec.MsgspecError, ValueError) as error:
            unread.append(("jobs", (name,), str(error)))
    if unread:
        connection.execute("BEGIN IMMEDIATE")
        for table, row, _ in unread:
            aside, which = f"unread_{table}", _KEYS[table]
            columns = f"SELECT *, CURRENT_TIMESTAMP AS set_aside_at FROM {table} WHERE"  # noqa: S608 - constants
            connection.execute(f"CREATE TABLE IF NOT EXISTS {aside} AS {columns} FALSE")
            connection.execute(f"INSERT INTO {aside} {columns} {which}", row)
            connection.execute(f"DELETE FROM {table} WHERE {which}", row)  # noqa: S608 - constants
        connection.execute("COMMIT")
    for table, row, reason in unread:
        _log.warning("store.row_unread", table=table, row="/".join(map(str, row)), reason=one_line(reason))
    return Snapshot(1, notices, jobs), Counter(table for table, _, _ in unread)


def _explained(error: Exception, path: Path) -> str:
    """Explains an error if SQLite's own message does not say what to do."""
    code = error.sqlite_errorcode & 0xFF if isinstance(error, sqlite3.Error) else None
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return (
            f"already served by another supervisor. Only one may serve from {path.parent}: end that one, or choose "
            "another directory with JOB_SUPERVISOR_DATA_DIR"
        )
    if code is not None and os.statvfs(path.parent).f_flag & os.ST_RDONLY:
        return "its file system is read-only"
    return str(error)


def _continue_clock(connection: sqlite3.Connection, clock: Clock, active: bool) -> None:  # noqa: FBT001 - internal
    now = clock.boot_time
    connection.execute(_BOOT_TIME)
    row = connection.execute("SELECT boot, at FROM boot_time").fetchone()
    kept = None if row is None else BootTime(*row)
    if kept is None or not active or not kept.boot or kept.boot != now.boot:
        connection.execute("INSERT OR REPLACE INTO boot_time (one, boot, at) VALUES (1, ?, ?)", (now.boot, now.at))
        return
    clock.move(kept.at - now.at)
    if abs(kept.at - now.at) > _STEP_SECONDS:
        _log.warning("clock.stepped", seconds=round(now.at - kept.at, 1))


def _write(connection: sqlite3.Connection, writes: Sequence[_Write]) -> None:
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
