"""The database of the record, by SQLAlchemy: an SQLite file, or any database that a URL names.

Every call blocks, so that its callers use a thread. Nothing else than this module, `ledger_tables` and `stay_tables`
knows the tables.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from sqlalchemy import (
    URL,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    and_,
    create_engine,
    delete,
    event,
    func,
    insert,
    make_url,
    or_,
    select,
    update,
)
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import ArgumentError, DataError, SQLAlchemyError

from supervisor.domain.capacity import MachinePool
from supervisor.domain.ids import JobName
from supervisor.domain.ledger import Account, HeldOn
from supervisor.domain.notice import OF_PEOPLE
from supervisor.domain.worker_time import HourlyTime
from supervisor.observability.history import HistoryEntry
from supervisor.observability.ledger.book import HeldHours, LedgerHours
from supervisor.observability.ledger.stays import StayChanges
from supervisor.observability.record import ledger_tables, stay_tables
from supervisor.observability.record.stay_tables import JobCapacity, PoolCapacity

_VERSION = 2
_MAX_NAMES = 500
"""Subjects in one question; SQLite has taken 999 parameters at least."""
_TIMEOUT_SECONDS = 10
_POOL_SUBJECT = "pool/"
"""The beginning of the subjects that are capacity pools."""
_ID = BigInteger().with_variant(Integer(), "sqlite")

K = TypeVar("K")

_metadata = MetaData()
_versions = Table("record_version", _metadata, Column("version", Integer, primary_key=True, autoincrement=False))
_entries = Table(
    "record_entries",
    _metadata,
    Column("id", _ID, primary_key=True),
    Column("at", Float(53), nullable=False),
    Column("subject", Text, nullable=False),
    Column("what", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("run", BigInteger, nullable=False),
    Column("source", Text, nullable=False),
    Column("drill", Boolean, nullable=False),
    Index("record_entries_by_time", "at", "id"),
)
_HAS_SOURCE = _entries.c.source != ""
Index(
    "record_entries_by_source",
    _entries.c.source,
    _entries.c.at,
    _entries.c.id,
    sqlite_where=_HAS_SOURCE,
    postgresql_where=_HAS_SOURCE,
)
_subjects = Table(
    "record_subjects",
    _metadata,
    Column("id", _ID, primary_key=True),
    Column("subject", Text, nullable=False, unique=True),
)
"""The subjects by number: their names would be most of the table below and of its index."""
_concerned = Table(
    "record_concerns",
    _metadata,
    Column("subject", _ID, ForeignKey(_subjects.c.id), nullable=False),
    Column("at", Float(53), nullable=False),
    Column("entry", _ID, ForeignKey(_entries.c.id, ondelete="CASCADE"), nullable=False),
    PrimaryKeyConstraint("subject", "at", "entry"),
    Index("record_concerns_by_entry", "entry"),
    sqlite_with_rowid=False,
)
"""The subjects of each entry, its own and the others that it concerns, in the order of time."""
_FORMER = "record_concerned"
"""The table of version 1, which had the names of subjects."""


class RecordError(Exception):
    """The database cannot be opened, read or written now; the message says why, without the URL's password."""


class UnwritableError(RecordError):
    """The database takes an entry for nothing that it can keep, such as one with a NUL in PostgreSQL."""


class HistoryPosition(msgspec.Struct, frozen=True, array_like=True):
    """The earliest entry of a page: the next page ends before it."""

    at: float
    id: int

    @classmethod
    def read(cls, text: str) -> "HistoryPosition":
        """Parses the result of `str`.

        Raises:
            ValueError: The text is not a position.
        """
        at, _, number = text.partition("-")
        return cls(float.fromhex(at), int(number))

    def __str__(self) -> str:
        return f"{self.at.hex()}-{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryQuery:
    """Which entries are wanted. Instants are Unix seconds.

    Attributes:
        subject: Only entries that concern it, such as `job/NAME` or `node/NAME`; empty for all.
        own: Only entries whose own subject is one of these; empty for all.
        source: Only notices of this source; empty for all entries.
        notices: Whether only notices are wanted, of whatever source.
        since: The earliest instant; None for the beginning.
        until: The instant before which they were; None for now.
        drills: Whether entries of drills are wanted.
        before: Only entries before this position; None for the latest.
        limit: The most entries.
    """

    subject: str = ""
    own: Collection[str] = ()
    source: str = ""
    notices: bool = False
    since: float | None = None
    until: float | None = None
    drills: bool = True
    before: HistoryPosition | None = None
    limit: int


@dataclass(frozen=True, slots=True)
class HistoryPage:
    """The latest of the wanted entries, the earliest of them first; `next` is the position of the page before it.

    `since` is the instant of the earliest entry that is kept, of whatever subject; None if there is none.
    """

    entries: Sequence[HistoryEntry]
    next: HistoryPosition | None
    since: float | None


@dataclass(frozen=True, slots=True)
class PoolTime:
    """The worker-seconds that a job held in a pool, by account, and how often one of its hosts there went.

    `noticed`: how often with a notice.
    """

    worker_seconds: Mapping[Account, float]
    went: int = 0
    noticed: int = 0


def file_url(path: Path) -> str:
    """Returns the URL of an SQLite file."""
    return URL.create("sqlite", database=str(path)).render_as_string()


class RecordDatabase:
    """An open database; `open` creates its tables where they are missing."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @classmethod
    def open(cls, url: str) -> "RecordDatabase":
        """Opens the database.

        Raises:
            RecordError: It cannot be had, or a newer version has written it.
        """
        try:
            engine = _engine(url)
        except (ArgumentError, ImportError, SQLAlchemyError) as error:
            raise RecordError(f"the URL names no database that is supported: {type(error).__name__}") from error
        try:
            with _translated(), engine.begin() as connection:
                _prepare(connection)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine)

    def close(self) -> None:
        """Closes all connections."""
        self._engine.dispose()

    def append(self, entries: Iterable[HistoryEntry]) -> None:
        """Adds entries in one transaction.

        Raises:
            RecordError: None of them was added.
            UnwritableError: Likewise, because of one of them: it would be refused again.
        """
        added = list(entries)
        if not added:
            return
        rows = [
            {
                "at": each.at,
                "subject": each.subject,
                "what": each.what,
                "text": each.text,
                "run": each.run,
                "source": each.source,
                "drill": each.drill,
            }
            for each in added
        ]
        with _translated(), self._engine.begin() as connection:
            numbered = connection.scalars(
                insert(_entries).returning(_entries.c.id, sort_by_parameter_order=True), rows
            ).all()
            subjects = [{each.subject, *each.concerns} for each in added]
            known = _numbered(connection, sorted(set().union(*subjects)))
            concerned = [
                {"subject": known[subject], "at": each.at, "entry": number}
                for number, each, concerns in zip(numbered, added, subjects, strict=True)
                for subject in concerns
            ]
            connection.execute(insert(_concerned), concerned)

    def read(self, query: HistoryQuery) -> HistoryPage:
        """Returns a page of entries.

        Raises:
            RecordError: They cannot be read now.
        """
        at, number = _entries.c.at, _entries.c.id
        statement = select(_entries)
        if query.subject:
            at, number = _concerned.c.at, _concerned.c.entry
            subject = select(_subjects.c.id).where(_subjects.c.subject == query.subject).scalar_subquery()
            statement = statement.join(_concerned, number == _entries.c.id).where(_concerned.c.subject == subject)
        statement = statement.where(*_conditions(query, at, number))
        statement = statement.order_by(at.desc(), number.desc()).limit(query.limit + 1)
        with _translated(), self._engine.connect() as connection:
            rows = connection.execute(statement).all()
            since = connection.scalar(select(func.min(_entries.c.at)))
            page = rows[: query.limit]
            concerns = _concerns(connection, [row.id for row in page])
        entries = [_entry(row, concerns.get(row.id, ())) for row in reversed(page)]
        last = page[-1] if len(rows) > query.limit else None
        return HistoryPage(entries, None if last is None else HistoryPosition(last.at, last.id), since)

    def read_pool_entries(self, since: float, until: float) -> Sequence[tuple[float, str, str]]:
        """Returns the instant, the capacity pool and the word of each entry of a node's notice between two instants.

        Notices of people, such as drills, are left out: they prove nothing about a pool.

        Raises:
            RecordError: They cannot be read now.
        """
        wanted = (
            select(_entries.c.at, _subjects.c.subject, _entries.c.what)
            .join(_concerned, _concerned.c.entry == _entries.c.id)
            .join(_subjects, _subjects.c.id == _concerned.c.subject)
            .where(
                _entries.c.at >= since,
                _entries.c.at < until,
                _HAS_SOURCE,
                _entries.c.source.not_in(OF_PEOPLE),
                _subjects.c.subject.startswith(_POOL_SUBJECT, autoescape=True),
            )
        )
        with _translated(), self._engine.connect() as connection:
            return [(at, subject.removeprefix(_POOL_SUBJECT), what) for at, subject, what in connection.execute(wanted)]

    def write_hours(self, hours: LedgerHours, held: HeldHours, writer: str) -> None:
        """Writes hours of the ledger, instead of what the same writer has written of them before.

        Raises:
            RecordError: None of them was written.
        """
        with _translated(), self._engine.begin() as connection:
            ledger_tables.write(connection, hours, held, writer)

    def read_hours(self, since: float, until: float) -> Mapping[JobName, Mapping[Account, float]]:
        """Returns the worker-seconds of each job in the hours that begin between two instants (Unix seconds).

        Accounts of a later version are left out.

        Raises:
            RecordError: They cannot be read now.
        """
        with _translated(), self._engine.connect() as connection:
            return ledger_tables.read_jobs(connection, since, until)

    def read_hourly(self, since: float, until: float, job: JobName | None) -> HourlyTime:
        """Returns the worker-seconds of one job, or of all, in each hour that begins between two instants.

        Raises:
            RecordError: They cannot be read now.
        """
        with _translated(), self._engine.connect() as connection:
            return ledger_tables.read_hourly(connection, since, until, job)

    def read_machines(self, since: float, until: float) -> Mapping[JobName, Mapping[HeldOn, float]]:
        """Returns the worker-seconds that each job held on each kind of machine, as `read_hours` does.

        Raises:
            RecordError: They cannot be read now.
        """
        with _translated(), self._engine.connect() as connection:
            return ledger_tables.read_machines(connection, since, until)

    def read_held(self, since: float, until: float) -> Mapping[HeldOn, float]:
        """Returns the worker-seconds that all jobs together held on each kind of machine, as `read_hours` does.

        Raises:
            RecordError: They cannot be read now.
        """
        with _translated(), self._engine.connect() as connection:
            return ledger_tables.read_held(connection, since, until)

    def read_pools(self, since: float, until: float) -> Mapping[JobName, Mapping[MachinePool, PoolTime]]:
        """Returns what each job held in each pool, and how often hosts went, as `read_hours` does.

        Hours that an earlier version has written are not in it, nor the goings that are too many to be kept.

        Raises:
            RecordError: It cannot be read now.
        """
        with _translated(), self._engine.connect() as connection:
            held = ledger_tables.read_pools(connection, since, until)
            gone = stay_tables.read_gone(connection, since, until)
        found = {job: {pool: PoolTime(seconds) for pool, seconds in pools.items()} for job, pools in held.items()}
        for job, pool, went, noticed in gone:
            pools = found.setdefault(job, {})
            known = pools.get(pool, PoolTime({}))
            pools[pool] = replace(known, went=known.went + went, noticed=known.noticed + noticed)
        return found

    def sum_up(self, now: float) -> None:
        """Sums up the days of the ledger that are over, which makes reading them faster and changes nothing else.

        Raises:
            RecordError: It cannot be done now.
        """
        has_more = True
        while has_more:
            with _translated(), self._engine.begin() as connection:
                has_more = ledger_tables.sum_up_one(connection, now)

    def write_stays(self, changes: StayChanges, writer: str) -> None:
        """Writes spans and stays, instead of what the same writer has written of them before.

        Raises:
            RecordError: None of them was written.
        """
        with _translated(), self._engine.begin() as connection:
            stay_tables.write(connection, changes, writer)

    def read_capacity(self, job: JobName, since: float, until: float, most: int) -> JobCapacity:
        """Returns when a job wanted workers, and which hosts were there, between two instants (Unix seconds).

        Args:
            job: The job.
            since: Spans and stays that end later are wanted.
            until: Likewise those that begin earlier.
            most: The most spans, and the most stays.

        Raises:
            RecordError: It cannot be read now.
        """
        with _translated(), self._engine.connect() as connection:
            return stay_tables.read_capacity(connection, job, since, until, most)

    def read_pool_stays(self, pool: MachinePool, since: float, until: float, most: int) -> PoolCapacity:
        """Returns which hosts of a pool, of whatever price class, were there between two instants (Unix seconds).

        Args:
            pool: The pool.
            since: Stays that end later are wanted.
            until: Likewise those that begin earlier.
            most: The most stays.

        Raises:
            RecordError: They cannot be read now.
        """
        with _translated(), self._engine.connect() as connection:
            return stay_tables.read_pool_stays(connection, pool, since, until, most)

    def begins(self) -> float | None:
        """Returns the instant of the earliest entry; None if there is none.

        Raises:
            RecordError: It cannot be read now.
        """
        with _translated(), self._engine.connect() as connection:
            earliest: float | None = connection.scalar(select(func.min(_entries.c.at)))
            return earliest

    def prune(self, before: float, most: int) -> int:
        """Deletes the entries from before an instant (Unix seconds), and the earliest of more than `most`.

        The hours of the ledger from before that instant are deleted as well, and the earliest of more than `most` rows;
        likewise the spans and stays of jobs.
        Returns how many entries were deleted.

        Raises:
            RecordError: None was deleted.
        """
        with _translated(), self._engine.begin() as connection:
            ledger_tables.prune(connection, before, most)
            stay_tables.prune(connection, before, most)
            order = (_entries.c.at.desc(), _entries.c.id.desc())
            surplus = connection.execute(
                select(_entries.c.at, _entries.c.id).order_by(*order).offset(most).limit(1)
            ).first()
            old: Any = _entries.c.at < before
            if surplus is not None:
                old = or_(
                    old, _entries.c.at < surplus.at, and_(_entries.c.at == surplus.at, _entries.c.id <= surplus.id)
                )
            deleted = connection.execute(delete(_entries).where(old)).rowcount
            if deleted:
                concerned = select(_concerned.c.entry).where(_concerned.c.subject == _subjects.c.id)
                connection.execute(delete(_subjects).where(~concerned.exists()))
            return deleted


def _prepare(connection: Connection) -> None:
    """Creates the tables where they are missing."""
    _versions.create(connection, checkfirst=True)
    found = connection.scalar(select(func.max(_versions.c.version)))
    if found is not None and found > _VERSION:
        raise RecordError(f"its version {found} is newer than this supervisor, which knows {_VERSION}: use another one")
    for metadata in (_metadata, ledger_tables.METADATA, stay_tables.METADATA):
        metadata.create_all(connection)
    stay_tables.add_columns(connection)
    if found is None:
        connection.execute(insert(_versions).values(version=_VERSION))
    elif found < _VERSION:
        _number_subjects(connection)
        connection.execute(update(_versions).values(version=_VERSION))


def _number_subjects(connection: Connection) -> None:
    """Moves what entries concern out of the table of version 1, and makes the indexes that it did not have at first.

    Nor had its table the instants, so they are the entries'.
    """
    former = Table(_FORMER, MetaData(), Column("subject", Text), Column("entry", _ID))
    connection.execute(insert(_subjects).from_select(["subject"], select(former.c.subject).distinct()))
    moved = select(_subjects.c.id, _entries.c.at, former.c.entry).select_from(former)
    moved = moved.join(_subjects, _subjects.c.subject == former.c.subject)
    moved = moved.join(_entries, _entries.c.id == former.c.entry)
    connection.execute(insert(_concerned).from_select(["subject", "at", "entry"], moved))
    former.drop(connection)
    for table in [*_metadata.tables.values(), *stay_tables.METADATA.tables.values()]:
        for index in table.indexes:
            index.create(connection, checkfirst=True)


def _numbered(connection: Connection, names: Sequence[str]) -> Mapping[str, int]:
    """Returns the numbers of subjects; those that have none yet get one."""
    found = dict[str, int]()
    for begin in range(0, len(names), _MAX_NAMES):
        part = names[begin : begin + _MAX_NAMES]
        known = select(_subjects.c.subject, _subjects.c.id).where(_subjects.c.subject.in_(part))
        found |= {row.subject: row.id for row in connection.execute(known)}
    if new := [name for name in names if name not in found]:
        numbers = insert(_subjects).returning(_subjects.c.id, sort_by_parameter_order=True)
        rows = [{"subject": name} for name in new]
        found |= zip(new, connection.scalars(numbers, rows).all(), strict=True)
    return found


def _engine(url: str) -> Engine:
    parsed = make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    is_file = parsed.get_backend_name() == "sqlite"
    timeout = {"timeout" if is_file else "connect_timeout": _TIMEOUT_SECONDS}
    engine = create_engine(parsed, connect_args=timeout, pool_pre_ping=not is_file, hide_parameters=True)
    if is_file:
        event.listen(engine, "connect", _prepare_file)
    return engine


def _prepare_file(connection: Any, _record: object) -> None:
    for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _conditions(query: HistoryQuery, at: ColumnElement[float], number: ColumnElement[int]) -> Iterator[Any]:
    """The conditions of a query; `at` and `number` are the columns of an entry's position by which it is ordered."""
    if query.own:
        yield _entries.c.subject.in_(query.own)
    if query.source:
        # Databases use the index, which has notices alone, where they see that only those are wanted.
        yield and_(_HAS_SOURCE, _entries.c.source == query.source)
    elif query.notices:
        yield _HAS_SOURCE
    if query.since is not None:
        yield at >= query.since
    if query.until is not None:
        yield at < query.until
    if not query.drills:
        yield _entries.c.drill.is_(False)
    if query.before is not None:
        # With the first condition alone a database knows where to begin.
        yield at <= query.before.at
        yield or_(at < query.before.at, number < query.before.id)


def _concerns(connection: Connection, numbers: Sequence[int]) -> dict[int, tuple[str, ...]]:
    """Returns the other subjects that entries concern, by the entries' ids."""
    wanted = select(_concerned.c.entry, _subjects.c.subject).join(_entries, _entries.c.id == _concerned.c.entry)
    wanted = wanted.join(_subjects, _subjects.c.id == _concerned.c.subject)
    wanted = wanted.where(_concerned.c.entry.in_(numbers), _subjects.c.subject != _entries.c.subject)
    wanted = wanted.order_by(_subjects.c.subject)
    found: dict[int, tuple[str, ...]] = {}
    for number, subject in connection.execute(wanted):
        found[number] = (*found.get(number, ()), subject)
    return found


def _entry(row: Any, concerns: tuple[str, ...]) -> HistoryEntry:
    return HistoryEntry(
        at=row.at, subject=row.subject, what=row.what, text=row.text, run=row.run, concerns=concerns, source=row.source
    )


@contextmanager
def _translated() -> Iterator[None]:
    """Raises RecordError for what the database raises. The message has no parameters, which may be long."""
    try:
        yield
    except (DataError, ValueError) as error:  # ValueError: text that cannot be encoded.
        raise UnwritableError(type(error).__name__) from error
    except (SQLAlchemyError, OSError) as error:
        told = str(getattr(error, "orig", None) or error).strip() or type(error).__name__
        raise RecordError(told.splitlines()[0]) from error
