"""A database of version 1, made with the SQL of its supervisors, is brought up to date whole or not at all."""

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, inspect, text

from supervisor.domain.ids import JobName
from supervisor.domain.ledger import Account
from supervisor.observability.history import HistoryEntry
from supervisor.observability.record.database import (
    HistoryPosition,
    HistoryQuery,
    RecordDatabase,
    RecordError,
    file_url,
)
from tests.supervisor.observability.record.record_postgresql import NoPostgresqlError, postgresql
from tests.testkit.waiting import PATIENCE

_T0 = 1_700_000_000.0
_HOUR = _T0 // 3600 * 3600
_LAYOUTS = Path(__file__).with_name("version_1")
"""The statements by which supervisors made a database of version 1: the first ones, and the last."""
_MANY = 2500
_STEPS = ("INSERT INTO record_subjects", "INSERT INTO record_concerns", "DROP TABLE", "UPDATE record_version", "COMMIT")
"""The statements by which a database is brought up to date."""
_KILLED = 9

_ENTRY = text(
    "INSERT INTO record_entries (at, subject, what, text, run, source, drill)"
    " VALUES (:at, :subject, :what, :text, :run, :source, :drill)"
)
_CONCERNED_AT_FIRST = text("INSERT INTO record_concerned (subject, entry) VALUES (:subject, :entry)")
_CONCERNED = text("INSERT INTO record_concerned (subject, at, entry) VALUES (:subject, :at, :entry)")
_HOURS = text(
    "INSERT INTO ledger_hours (begins, job, writer, account, worker_seconds)"
    " VALUES (:begins, 'bert', 'a', :account, 10)"
)
_STAY = text(
    "INSERT INTO host_stays (job, begins, host, writer, ends, gone) VALUES ('bert', :begins, 'n1', 'a', :ends, true)"
)

HOSTILE = (
    "job/bert",
    "job/Bert",
    "job/bert ",
    "node/caf\u00e9",
    "node/cafe\u0301",
    "node/'; DROP TABLE record_entries; --",
    'node/"quoted"\\',
    "node/100%_of",
    "pool/%/_",
    "node/two\nlines\ttabs\r",
    "node/\u202egnol",
    "node/\U0001f4a5\ufeff",
    "node/" + "long" * 300,
    "",
)
"""Names that a database might take for another one, or for more than a name."""


@dataclass(frozen=True)
class OldDatabase:
    """A database of version 1, and what it has, in the order of time."""

    url: str
    entries: Sequence[HistoryEntry]

    def engine(self) -> Engine:
        return create_engine(self.url.replace("postgresql:", "postgresql+psycopg:"))


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    # Not pytest's directory: the path of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="record-") as directory:
        try:
            with postgresql(Path(directory)) as url:
                yield url
        except NoPostgresqlError as reason:
            pytest.skip(str(reason))


@pytest.fixture(params=["last", "first"])
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["sqlite", "postgresql"])
def make(request: pytest.FixtureRequest, tmp_path: Path, layout: str) -> Callable[[int], OldDatabase]:
    """Makes a new database with so many entries besides those of each kind."""
    numbers = count()

    def made(many: int) -> OldDatabase:
        if request.param == "sqlite":
            url = file_url(tmp_path / f"record-{next(numbers)}.sqlite")
        else:
            url = str(request.getfixturevalue("server"))
        old = OldDatabase(url, _entries(many))
        engine = old.engine()
        with engine.begin() as connection:
            if request.param == "postgresql":
                connection.execute(text("DROP SCHEMA public CASCADE"))
                connection.execute(text("CREATE SCHEMA public"))
        with engine.begin() as connection:
            for statement in (_LAYOUTS / f"{layout}_{request.param}.sql").read_text("utf-8").split(";\n"):
                if statement:
                    connection.exec_driver_sql(statement)
            _fill(connection, old.entries, layout)
        engine.dispose()
        return old

    return made


def _entries(many: int) -> list[HistoryEntry]:
    """Entries of all kinds, about hostile subjects, and many about many more."""
    kinds = [
        HistoryEntry(at=_T0, subject="record", what="Began", text="Supervisor a began to lead."),
        HistoryEntry(at=_T0, subject="record", what="Gap", text="Entries that are missing: 3."),
        HistoryEntry(
            at=_T0 + 1, subject="node/n1", what="Notice", text="Spät: 迟到", source="aws", concerns=("pool/a",)
        ),
        HistoryEntry(at=_T0 + 1, subject="node/n1", what="Notice", text="Drill: it stays.", source="simulated"),
        HistoryEntry(at=_T0 + 2, subject="job/bert", what="Running", text="Run.", run=2**40, concerns=("node/n1",)),
    ]
    hostile = [
        HistoryEntry(at=_T0 + 3 + at, subject=subject, what=subject[:9], text=subject, concerns=(f"pod/{subject}",))
        for at, subject in enumerate(HOSTILE)
    ]
    crowd = [
        HistoryEntry(
            at=_T0 + 100 + number // 3,
            subject=f"job/{number % 700}",
            what="Shrinking",
            text=f"Because of {number}.",
            run=number,
            concerns=tuple(sorted(f"node/{(number * 7 + each) % 900}" for each in range(number % 4))),
        )
        for number in range(many)
    ]
    return [*kinds, *hostile, *crowd]


def _fill(connection: Any, entries: Sequence[HistoryEntry], layout: str) -> None:
    """Writes as the supervisors of version 1 did."""
    connection.execute(text("INSERT INTO record_version (version) VALUES (1)"))
    # The latest first, and one by one, so that no number follows from an instant.
    written = sorted(entries, key=lambda each: -each.at)
    for each in written:
        row = {**asdict(each), "drill": each.drill}
        del row["concerns"]
        connection.execute(_ENTRY, row)
    concerned = [
        {"subject": subject, "at": each.at, "entry": number}
        for number, each in enumerate(written, 1)
        for subject in {each.subject, *each.concerns}
    ]
    connection.execute(_CONCERNED_AT_FIRST if layout == "first" else _CONCERNED, concerned)
    if layout == "last":
        connection.execute(_HOURS, {"begins": _HOUR, "account": Account.TRAINING.value})
        connection.execute(_STAY, {"begins": _HOUR, "ends": _HOUR + 9})


def _read(database: RecordDatabase, **query: object) -> list[HistoryEntry]:
    """All pages of a question."""
    found, position = list[HistoryEntry](), None
    while True:
        page = database.read(HistoryQuery(limit=997, before=position, **query))  # type: ignore[arg-type]
        found = [*page.entries, *found]
        if page.next is None:
            return found
        position = HistoryPosition.read(str(page.next))


def _concerning(entries: Sequence[HistoryEntry], subject: str) -> list[HistoryEntry]:
    return [each for each in entries if subject in {each.subject, *each.concerns}]


def _assert_is_read_and_goes_on(old: OldDatabase) -> None:
    database = RecordDatabase.open(old.url)
    try:
        assert _read(database) == list(old.entries)
        for subject in (
            "record",
            "node/n1",
            "pool/a",
            "job/7",
            "node/7",
            *HOSTILE,
            *(f"pod/{each}" for each in HOSTILE),
        ):
            # An empty subject asks for all.
            wanted = _concerning(old.entries, subject) if subject else list(old.entries)
            assert _read(database, subject=subject) == wanted, subject
        last = [
            HistoryEntry(at=_T0 + 9e6 + number, subject=subject, what="New", text="Then.", concerns=("node/new",))
            for number, subject in enumerate((*HOSTILE, "job/new"))
        ]
        database.append(last)
        assert _read(database) == [*old.entries, *last]
        assert _read(database, subject="node/new") == last
        assert _read(database, subject="job/bert") == [*_concerning(old.entries, "job/bert"), last[0]]
        assert database.prune(_T0 + 9e6, 10**6) == len(old.entries)
        assert _read(database) == last
    finally:
        database.close()


def _version(old: OldDatabase) -> int:
    engine = old.engine()
    with engine.connect() as connection:
        version = connection.scalar(text("SELECT max(version) FROM record_version"))
    engine.dispose()
    assert isinstance(version, int)
    return version


def _assert_is_whole_in_version_1(old: OldDatabase) -> None:
    """As a supervisor of version 1 reads it."""
    engine = old.engine()
    with engine.connect() as connection:
        entries = connection.execute(text("SELECT id, at, subject, text FROM record_entries ORDER BY at, id")).all()
        rows = connection.execute(text("SELECT entry, subject FROM record_concerned")).all()
        concerned = {(entry, subject) for entry, subject in rows}
    engine.dispose()
    assert [tuple(row)[1:] for row in entries] == [(each.at, each.subject, each.text) for each in old.entries]
    assert concerned == {
        (row.id, subject)
        for row, each in zip(entries, old.entries, strict=True)
        for subject in (each.subject, *each.concerns)
    }


def test_all_of_it_is_read_as_it_was_written_and_the_record_goes_on(make: Callable[[int], OldDatabase]) -> None:
    old = make(_MANY)
    _assert_is_whole_in_version_1(old)
    _assert_is_read_and_goes_on(old)
    assert _version(old) == 2
    engine = old.engine()
    indexes = {each["name"] for each in inspect(engine).get_indexes("record_entries")}
    assert indexes == {"record_entries_by_time", "record_entries_by_source"}
    assert not inspect(engine).has_table("record_concerned")
    engine.dispose()


@pytest.mark.parametrize("layout", ["last"])
def test_the_ledger_and_the_stays_of_hosts_are_there(make: Callable[[int], OldDatabase]) -> None:
    database = RecordDatabase.open(make(0).url)
    assert database.read_hours(_HOUR, _HOUR + 1) == {JobName("bert"): {Account.TRAINING: 10.0}}
    (stay,) = database.read_capacity(JobName("bert"), 0.0, math.inf, 9).stays
    assert (stay.host, stay.begins, stay.ends, stay.pool) == ("n1", _HOUR, _HOUR + 9, None)
    database.close()


def test_a_failure_at_any_statement_leaves_it_whole(make: Callable[[int], OldDatabase]) -> None:
    """Each of them fails once, one after the other: each time the next supervisor begins again."""
    old, failed = make(20), list[str]()
    while _fails_at_another_statement(old.url, failed):
        assert _version(old) == 1
        _assert_is_whole_in_version_1(old)
    assert [step for step in _STEPS if any(each.startswith(step) for each in failed)] == list(_STEPS)
    _assert_is_read_and_goes_on(old)


def _fails_at_another_statement(url: str, failed: list[str]) -> bool:
    """Opens a database, of which the first statement fails that has not failed yet; returns whether there was one."""

    def told(statement: str) -> None:
        if statement not in failed and not statement.lstrip().startswith(("PRAGMA", "SELECT")):
            failed.append(statement.lstrip())
            raise OSError("no space left")

    def on_statement(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        told(statement.lstrip())

    def on_commit(_connection: Any) -> None:
        told("COMMIT")

    before = len(failed)
    event.listen(Engine, "before_cursor_execute", on_statement)
    event.listen(Engine, "commit", on_commit)
    try:
        RecordDatabase.open(url).close()
    except RecordError as error:
        assert str(error) == "no space left"  # noqa: PT017 - it may be opened, too
    finally:
        event.remove(Engine, "before_cursor_execute", on_statement)
        event.remove(Engine, "commit", on_commit)
    return len(failed) > before


_DIES = f"""
import os, sys
from sqlalchemy import Engine, event
from supervisor.observability.record.database import RecordDatabase

def told(statement):
    if statement.lstrip().startswith(sys.argv[2]):
        os._exit({_KILLED})

event.listen(Engine, "before_cursor_execute", lambda _connection, _cursor, statement, *_rest: told(statement))
event.listen(Engine, "commit", lambda _connection: told("COMMIT"))
RecordDatabase.open(sys.argv[1])
"""


@pytest.mark.parametrize("layout", ["last"])
@pytest.mark.parametrize("step", _STEPS)
def test_a_supervisor_that_is_killed_in_between_leaves_it_whole(make: Callable[[int], OldDatabase], step: str) -> None:
    old = make(20)
    died = subprocess.run([sys.executable, "-c", _DIES, old.url, step], check=False, timeout=PATIENCE, env=os.environ)
    assert died.returncode == _KILLED
    assert _version(old) == 1
    _assert_is_whole_in_version_1(old)
    _assert_is_read_and_goes_on(old)
