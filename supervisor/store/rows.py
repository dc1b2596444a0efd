"""The tables of the SQLite store, and the domain's values as rows.

Each value is stored whole, as the JSON of its dataclass.
"""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from servicekit.clock import BootTime
from supervisor.domain.ids import JobName, NoticeId
from supervisor.domain.job import Decision, Observed, SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.store.interface import MAX_EPISODES
from supervisor.store.specs import sound, spec_fields, spec_of

_VERSION = 2
_TABLES = (
    """CREATE TABLE notices (
        id TEXT NOT NULL, episode INTEGER NOT NULL, ended_at REAL, body BLOB NOT NULL,
        PRIMARY KEY (id, episode)) STRICT, WITHOUT ROWID""",
    """CREATE TABLE jobs (
        name TEXT NOT NULL PRIMARY KEY, uid TEXT NOT NULL,
        spec BLOB NOT NULL, observed BLOB NOT NULL, decision BLOB NOT NULL) STRICT, WITHOUT ROWID""",
)

Write = tuple[str, Sequence[object]]
"""A statement and its parameters."""

_encoder = msgspec.json.Encoder(order="deterministic")


@dataclass(frozen=True, slots=True)
class UnreadRow:
    """A row that does not decode: its table, its key, and why."""

    table: str
    key: tuple[object, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ReadRows:
    """The newest episode of every notice, and every job; `unread` are the rows that were set aside."""

    notices: Mapping[NoticeId, ReclaimNotice]
    jobs: Mapping[JobName, SupervisedJob]
    unread: Sequence[UnreadRow] = ()


class UnreadableError(Exception):
    """This version cannot read what is in the file."""


def create(connection: sqlite3.Connection) -> None:
    """Creates the tables in a new file."""
    connection.execute("BEGIN EXCLUSIVE")
    for table in _TABLES:
        connection.execute(table)
    connection.execute(f"PRAGMA user_version = {_VERSION}")
    connection.execute("COMMIT")


def prepare(connection: sqlite3.Connection) -> None:
    """Locks a file, checks it and migrates it to the present version.

    Raises:
        UnreadableError: A newer version wrote the file, or it is damaged.
        sqlite3.Error: It is damaged, or another process has it open.
    """
    # A second supervisor on the same file fails here, not in the middle of a reclaim.
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    # Before any write: a lost page may read as an empty table. This takes some 10 ms for 10 MB.
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise UnreadableError(f"it is damaged: {verdict}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN EXCLUSIVE")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == 1:
        _migrate_notice_ids(connection)
        connection.execute(f"PRAGMA user_version = {_VERSION}")
    connection.execute("COMMIT")
    if version == 0:
        raise UnreadableError("it is damaged: no store has been made in it")
    if version > _VERSION:
        raise UnreadableError(f"it was written by a newer version (schema {version}, this one knows {_VERSION})")


def read(connection: sqlite3.Connection) -> ReadRows:
    """Returns what is stored, and sets rows aside that do not decode.

    One row of another version must not keep everybody's supervisor from starting. The agent or the launcher that the
    row is of reports again, and its new row must not overwrite what nobody has understood.
    """
    notices, jobs, unread = dict[NoticeId, ReclaimNotice](), dict[JobName, SupervisedJob](), list[UnreadRow]()
    for key, episode, body in connection.execute("SELECT id, episode, body FROM notices ORDER BY id, episode"):
        try:
            notice = _notice(body)
            notices[notice.id] = notice
        except UnreadableError as error:
            unread.append(UnreadRow("notices", (key, episode), str(error)))
    for name, *row in connection.execute("SELECT name, uid, spec, observed, decision FROM jobs"):
        try:
            jobs[JobName(name)] = _job(name, *row)
        except (msgspec.MsgspecError, ValueError) as error:
            unread.append(UnreadRow("jobs", (name,), str(error)))
    if unread:
        _set_aside(connection, unread)
    return ReadRows(notices, jobs, unread)


_KEYS = {"notices": "id = ? AND episode = ?", "jobs": "name = ?"}


def _set_aside(connection: sqlite3.Connection, unread: Sequence[UnreadRow]) -> None:
    """Moves rows into the tables `unread_notices` and `unread_jobs`, where they stay for people."""
    connection.execute("BEGIN IMMEDIATE")
    for row in unread:
        aside, which = f"unread_{row.table}", _KEYS[row.table]
        columns = f"SELECT *, CURRENT_TIMESTAMP AS set_aside_at FROM {row.table} WHERE"  # noqa: S608 - constants
        connection.execute(f"CREATE TABLE IF NOT EXISTS {aside} AS {columns} FALSE")
        connection.execute(f"INSERT INTO {aside} {columns} {which}", row.key)
        connection.execute(f"DELETE FROM {row.table} WHERE {which}", row.key)  # noqa: S608 - constants
    connection.execute("COMMIT")


def _migrate_notice_ids(connection: sqlite3.Connection) -> None:
    """Before version 2, the id of a notice had the subject's uid without its name."""
    rows = connection.execute("SELECT episode, ended_at, body FROM notices").fetchall()
    connection.execute("DELETE FROM notices")
    for episode, ended_at, body in rows:
        connection.execute("INSERT INTO notices VALUES (?, ?, ?, ?)", (_notice(body).id, episode, ended_at, body))


def boot_time(connection: sqlite3.Connection) -> BootTime | None:
    """Returns the boot time that the stored instants count from, if there is one.

    Raises:
        sqlite3.Error: A file of an earlier version cannot be written.
    """
    # It is not created with the other tables, because earlier versions made files without it.
    connection.execute(
        "CREATE TABLE IF NOT EXISTS boot_time (one INTEGER PRIMARY KEY, boot TEXT NOT NULL, at REAL NOT NULL) STRICT"
    )
    row = connection.execute("SELECT boot, at FROM boot_time").fetchone()
    return None if row is None else BootTime(*row)


def set_boot_time(connection: sqlite3.Connection, value: BootTime) -> None:
    """Stores the boot time that instants count from.

    Raises:
        sqlite3.Error: The file cannot be written.
    """
    connection.execute("INSERT OR REPLACE INTO boot_time (one, boot, at) VALUES (1, ?, ?)", (value.boot, value.at))


def notice_writes(value: ReclaimNotice) -> list[Write]:
    """Returns the writes that store an episode of a notice and delete the one that is too many episodes old."""
    statement = "INSERT OR REPLACE INTO notices (id, episode, ended_at, body) VALUES (?, ?, ?, ?)"
    writes: list[Write] = [(statement, (value.id, value.episode, value.ended_at, _encoder.encode(value)))]
    if value.episode > MAX_EPISODES:
        # A source that announces and withdraws without end must not fill the disk before the retention ends.
        outlived = value.episode - MAX_EPISODES
        writes.append(("DELETE FROM notices WHERE id = ? AND episode = ?", (value.id, outlived)))
    return writes


def job_write(value: SupervisedJob) -> Write:
    """Returns the write that stores a job."""
    parts = [_encoder.encode(part) for part in (spec_fields(value.spec), value.observed, value.decision)]
    statement = "INSERT OR REPLACE INTO jobs (name, uid, spec, observed, decision) VALUES (?, ?, ?, ?, ?)"
    return statement, (value.name, value.uid, *parts)


def job_deletion(name: JobName) -> Write:
    """Returns the write that deletes a job."""
    return "DELETE FROM jobs WHERE name = ?", (name,)


def ended_deletions(before: float, jobs: Iterable[JobName]) -> list[Write]:
    """Returns the writes that delete the episodes that ended before that instant, and these jobs."""
    writes: list[Write] = [("DELETE FROM notices WHERE ended_at < ?", (before,))]
    return writes + [job_deletion(name) for name in jobs]


def _notice(body: bytes) -> ReclaimNotice:
    try:
        return msgspec.json.decode(body, type=ReclaimNotice)
    except msgspec.MsgspecError as error:
        raise UnreadableError(f"a row does not decode: {error}") from error


def _job(name: str, uid: str, spec: bytes, observed: bytes, decision: bytes) -> SupervisedJob:
    return SupervisedJob(
        name=JobName(name),
        uid=uid,
        spec=spec_of(msgspec.json.decode(spec, type=dict[str, Any])),
        observed=msgspec.json.decode(observed, type=Observed),
        decision=sound(msgspec.json.decode(decision, type=Decision)),
    )
