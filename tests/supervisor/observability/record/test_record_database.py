"""The record's database, as an SQLite file and in a real PostgreSQL."""

import math
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from supervisor.domain.capacity import MachinePool, PriceClass
from supervisor.domain.ids import Host, JobName
from supervisor.domain.ledger import Account, HeldOn
from supervisor.domain.stays import HostStay, MeasuredCosts, WantedSpan
from supervisor.observability.history import HistoryEntry
from supervisor.observability.ledger.hours import LedgerHour
from supervisor.observability.ledger.stays import StayChanges
from supervisor.observability.record.database import (
    HistoryPosition,
    HistoryQuery,
    PoolTime,
    RecordDatabase,
    RecordError,
    UnwritableError,
    file_url,
)
from supervisor.observability.record.stay_tables import PoolCapacity, fair_share
from tests.supervisor.observability.record.record_postgresql import NoPostgresqlError, postgresql

_T0 = 1_700_000_000.0
_HOUR = _T0 // 3600 * 3600
_JOB = JobName("bert")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    # Not pytest's directory: the path of a socket has at most 107 characters.
    with tempfile.TemporaryDirectory(prefix="record-") as directory:
        try:
            with postgresql(Path(directory)) as url:
                yield url
        except NoPostgresqlError as reason:
            pytest.skip(str(reason))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return file_url(tmp_path / "a ?%file") if request.param == "sqlite" else str(request.getfixturevalue("server"))


@pytest.fixture
def database(url: str) -> Iterator[RecordDatabase]:
    opened = RecordDatabase.open(url)
    opened.prune(float("inf"), 1)
    yield opened
    opened.close()


def _entry(at: float, subject: str = "job/bert", text: str = "Because.", **parts: object) -> HistoryEntry:
    return HistoryEntry(at=_T0 + at, subject=subject, what="Shrinking", text=text, **parts)  # type: ignore[arg-type]


def _texts(database: RecordDatabase, **query: object) -> list[str]:
    page = database.read(HistoryQuery(**{"limit": 100, **query}))  # type: ignore[arg-type]
    return [entry.text for entry in page.entries]


def test_entries_are_read_as_they_were_written_in_the_order_of_time(database: RecordDatabase) -> None:
    """An answer may be told later than what followed it."""
    late = _entry(2, concerns=("node/b", "node/a"), run=3)
    early = _entry(1, "node/a", "Spät: 迟到", source="aliyun")
    database.append([late])
    database.append([early, _entry(3, text="Drill: it will be reclaimed.")])
    page = database.read(HistoryQuery(limit=10))
    assert [entry.at - _T0 for entry in page.entries] == [1, 2, 3]
    assert page.entries[0] == early
    assert (page.entries[1].concerns, page.entries[1].run) == (("node/a", "node/b"), 3)
    assert [entry.drill for entry in page.entries] == [False, False, True]
    assert (page.next, page.since) == (None, _T0 + 1)


def test_each_filter_leaves_out_what_it_names(database: RecordDatabase) -> None:
    database.append(
        [
            _entry(1, "job/bert", "one", concerns=("node/n1",)),
            _entry(2, "node/n1", "two", source="aliyun"),
            _entry(3, "job/gpt", "Drill: three"),
            _entry(4, "pod/team/bert-0", "four", source="event"),
        ]
    )
    assert _texts(database, subject="job/bert") == ["one"]
    assert _texts(database, subject="node/n1") == ["one", "two"]
    assert _texts(database, own=["node/n1"]) == ["two"]
    assert _texts(database, subject="pod/team/bert-0") == ["four"]
    assert _texts(database, source="aliyun") == ["two"]
    assert _texts(database, drills=False) == ["one", "two", "four"]
    assert _texts(database, since=_T0 + 2, until=_T0 + 4) == ["two", "Drill: three"]
    assert _texts(database, subject="node/n2") == []


def test_notices_of_a_pool_are_read_without_decisions_and_without_those_of_people(database: RecordDatabase) -> None:
    pool: dict[str, Any] = {"concerns": ("pool/a/b_c/d",)}
    database.append(
        [
            _entry(0, "node/n1", source="aws", **pool),
            _entry(1, "job/bert", **pool),
            _entry(2, "node/n2", source="simulated", **pool),
            _entry(3, "node/n3", source="operator", **pool),
            _entry(4, "node/n4", source="event"),
            _entry(5, "node/n1", source="aws", **pool),
        ]
    )
    assert database.read_pool_entries(_T0, _T0 + 5) == [(_T0, "a/b_c/d", "Shrinking")]
    assert len(database.read_pool_entries(_T0, _T0 + 6)) == 2
    notices = database.read(HistoryQuery(subject="pool/a/b_c/d", notices=True, limit=9)).entries
    assert [entry.at - _T0 for entry in notices] == [0, 2, 3, 5]


def test_pages_show_each_entry_once_also_those_of_one_instant(database: RecordDatabase) -> None:
    """And with entries that are written meanwhile."""
    database.append(_entry(number // 3, text=str(number)) for number in range(10))
    shown, position = list[str](), None
    while True:
        page = database.read(HistoryQuery(limit=4, before=position))
        shown = [entry.text for entry in page.entries] + shown
        database.append([_entry(99, text="new")])
        if page.next is None:
            break
        position = HistoryPosition.read(str(page.next))
        assert position == page.next
    assert shown == [str(number) for number in range(10)]


def test_what_is_old_or_too_much_is_deleted(database: RecordDatabase) -> None:
    database.append(_entry(number, text=str(number), concerns=("node/n1",)) for number in range(10))
    assert database.prune(_T0 + 3, 1000) == 3
    assert _texts(database) == [str(number) for number in range(3, 10)]
    assert database.prune(_T0, 4) == 3
    assert _texts(database, subject="node/n1") == [str(number) for number in range(6, 10)]
    assert database.prune(_T0, 4) == 0


@pytest.mark.parametrize("text", ["half a pair: \ud800", "a NUL: \0"])
def test_text_that_no_database_keeps_is_told_apart_from_a_fault(database: RecordDatabase, text: str) -> None:
    """The others of its batch can be written without it."""
    try:
        database.append([_entry(1), _entry(2, text=text)])
    except UnwritableError:
        assert _texts(database) == []
    else:
        assert _texts(database) == ["Because.", text]


def test_it_is_there_when_it_is_opened_again(url: str, database: RecordDatabase) -> None:
    database.append([_entry(1)])
    again = RecordDatabase.open(url)
    assert _texts(again) == ["Because."]
    again.close()


def test_what_cannot_be_opened_says_why_and_no_password(tmp_path: Path) -> None:
    for wrong in (
        f"sqlite:///{tmp_path}/none/record",
        f"postgresql://ann:hunter2@/db?host={tmp_path}",
        "oracle+nothing://ann:hunter2@db",
        "ann:hunter2",
        "",
    ):
        with pytest.raises(RecordError) as refused:
            RecordDatabase.open(wrong)
        assert str(refused.value)
        assert "hunter2" not in str(refused.value)


def test_a_subject_is_kept_as_long_as_an_entry_concerns_it(url: str, database: RecordDatabase) -> None:
    database.append([_entry(1, concerns=("node/a",)), _entry(2, concerns=("node/b",))])
    database.append([_entry(3, concerns=("node/b",))])
    database.prune(_T0 + 1.5, 100)
    engine = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        kept = connection.scalars(text("SELECT subject FROM record_subjects ORDER BY subject")).all()
    engine.dispose()
    assert kept == ["job/bert", "node/b"]


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = file_url(tmp_path / "record.sqlite")
    with monkeypatch.context() as newer:
        newer.setattr("supervisor.observability.record.database._VERSION", 3)
        RecordDatabase.open(url).close()
    with pytest.raises(RecordError, match="version 3 is newer"):
        RecordDatabase.open(url)


@pytest.mark.parametrize("text", ["", "1", "x-1", "0x1p+0-x"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid|could not"):
        HistoryPosition.read(text)


def test_hours_of_the_ledger_are_the_sum_of_what_each_writer_has_written_last(database: RecordDatabase) -> None:
    job, other = JobName("team/pytorchjob.bert"), JobName("gpt")
    hours = {LedgerHour(_HOUR, job): {Account.TRAINING: 10.0, Account.WAITING: 5.0}}
    database.write_hours({**hours, LedgerHour(_HOUR + 3600, other): {Account.TRAINING: 1.0}}, {}, "one")
    database.write_hours({LedgerHour(_HOUR, job): {Account.TRAINING: 12.0}}, {}, "one")
    database.write_hours(hours, {}, "two")
    assert database.read_hours(_HOUR, _HOUR + 3600) == {job: {Account.TRAINING: 22.0, Account.WAITING: 5.0}}
    assert set(database.read_hours(_HOUR, _HOUR + 3601)) == {job, other}
    database.prune(_HOUR + 1, 10)
    assert set(database.read_hours(0.0, _HOUR + 3601)) == {other}


_SPOT = HeldOn(cloud="acs", zone="b", instance_type="gn7i", price_class=PriceClass.SPOT, gpus=2.0)


def test_what_is_held_on_each_kind_of_machine_is_kept_likewise(database: RecordDatabase) -> None:
    """Also with a number of GPUs that is unknown, which is not none; and by pool and account."""
    job, hour = JobName("bert"), LedgerHour(_HOUR, JobName("bert"))
    unknown, none = HeldOn(), HeldOn(gpus=0.0)
    training, joining = Account.TRAINING, Account.JOINING
    database.write_hours({}, {hour: {(training, _SPOT): 10.0, (training, unknown): 5.0, (joining, none): 1.0}}, "one")
    held = {(training, _SPOT): 8.0, (joining, _SPOT): 4.0, (training, unknown): 5.0}
    database.write_hours({hour: {Account.TRAINING: 1.0}}, {hour: held}, "one")
    database.write_hours({}, {hour: {(training, _SPOT): 3.0, (training, none): 1.0}}, "two")
    assert database.read_machines(_HOUR, _HOUR + 1) == {job: {_SPOT: 15.0, unknown: 5.0, none: 1.0}}
    assert database.read_pools(_HOUR, _HOUR + 1) == {
        job: {_SPOT.pool: PoolTime({training: 11.0, joining: 4.0}), MachinePool(): PoolTime({training: 6.0})}
    }
    database.prune(_HOUR + 1, 10)
    assert not database.read_machines(0.0, _HOUR + 3600)
    assert not database.read_pools(0.0, _HOUR + 3600)


def test_the_goings_of_hosts_are_counted_by_pool(database: RecordDatabase) -> None:
    """In the hours of the question; an unknown pool has its own."""
    ended = HostStay(host=Host("a"), begins=_HOUR, ends=_HOUR + 9, gone=True, pool=_SPOT.pool)
    stays = [
        ended,
        replace(ended, host=Host("b"), noticed=_HOUR + 1),
        replace(ended, host=Host("c"), gone=False),
        replace(ended, host=Host("d"), ends=None, gone=False),
        replace(ended, host=Host("e"), pool=None),
        replace(ended, host=Host("f"), ends=_HOUR + 3600),
    ]
    database.write_stays(_changes(_HOUR, *stays), "one")
    assert database.read_pools(_HOUR, _HOUR + 3600) == {
        _JOB: {_SPOT.pool: PoolTime({}, went=2, noticed=1), MachinePool(): PoolTime({}, went=1)}
    }
    assert {stay.pool for stay in database.read_capacity(_JOB, 0.0, math.inf, 10).stays} == {_SPOT.pool, None}


def test_a_database_of_an_earlier_version_is_read_and_goes_on(tmp_path: Path) -> None:
    """It has fewer columns. The earlier version can still write it, as nothing new has to have a value."""
    url = file_url(tmp_path / "record.sqlite")
    RecordDatabase.open(url).close()
    with sqlite3.connect(tmp_path / "record.sqlite") as file:
        for part in ("cloud", "zone", "instance_type", "price_class"):
            file.execute(f"ALTER TABLE host_stays DROP COLUMN {part}")
        for part in ("change_seconds", "in_rounds"):
            file.execute(f"ALTER TABLE wanted_spans DROP COLUMN {part}")
        for table in ("pool_hours", "pool_days"):
            file.execute(f"DROP TABLE {table}")
        earlier = "INSERT INTO host_stays (job, begins, host, writer, ends, gone) VALUES ('bert', ?, ?, 'one', ?, 1)"
        file.execute(earlier, (_HOUR, "a", _HOUR + 9))
        file.execute(
            "INSERT INTO wanted_spans (job, begins, writer, ends, least, most, in_process, restarts)"
            " VALUES ('bert', ?, 'one', ?, 1, 2, 1, 0)",
            (_HOUR - 3600, _HOUR),
        )
    database = RecordDatabase.open(url)
    database.write_stays(_changes(_HOUR, HostStay(host=Host("b"), begins=_HOUR, pool=_SPOT.pool)), "two")
    with sqlite3.connect(tmp_path / "record.sqlite") as file:
        file.execute(earlier, (_HOUR, "c", _HOUR + 9))
    file.close()
    found = {stay.host: stay.pool for stay in database.read_capacity(_JOB, 0.0, math.inf, 10).stays}
    assert found == {"a": None, "b": _SPOT.pool, "c": None}
    spans = database.read_capacity(_JOB, 0.0, math.inf, 10).spans
    assert [(span.costs.change_seconds, span.in_rounds) for span in spans] == [(None, False), (0.125, True)]
    assert database.read_pools(_HOUR, _HOUR + 3600) == {_JOB: {MachinePool(): PoolTime({}, went=2)}}
    database.close()


def test_pools_have_a_bound_of_their_own(database: RecordDatabase) -> None:
    """A job on many kinds of machines shortens what is known of pools, and not the ledger."""
    for number in range(3):
        hour = LedgerHour(_HOUR + 3600 * number, _JOB)
        kinds = {(Account.TRAINING, replace(_SPOT, zone=str(zone))): 1.0 for zone in range(4)}
        database.write_hours({hour: {Account.TRAINING: 4.0}}, {hour: kinds}, "one")
    database.prune(0.0, 8)
    assert database.read_hours(0.0, math.inf) == {_JOB: {Account.TRAINING: 12.0}}
    assert sum(sum(each.worker_seconds.values()) for each in database.read_pools(0.0, math.inf)[_JOB].values()) == 8.0


def test_a_day_that_is_over_keeps_what_is_left_of_its_pools(database: RecordDatabase) -> None:
    """Its sums went with its first hour, although other hours of it are there."""
    midnight, now = _T0 // 86_400 * 86_400, _T0 + 6 * 86_400
    for number in range(72):
        hour = LedgerHour(midnight + 3600 * number, _JOB)
        kinds = {(Account.TRAINING, replace(_SPOT, zone=str(zone))): 1.0 for zone in range(2)}
        database.write_hours({hour: {Account.TRAINING: 2.0}}, {hour: kinds}, "one")
    database.sum_up(now)
    database.prune(0.0, 80)

    def held() -> float:
        pools = database.read_pools(0.0, math.inf)[_JOB].values()
        return sum(sum(each.worker_seconds.values()) for each in pools)

    assert held() == 80.0
    database.sum_up(now)
    assert held() == 80.0
    assert database.read_hours(0.0, math.inf) == {_JOB: {Account.TRAINING: 144.0}}


_DAYS = 5
_DAY = 86_400.0
_MIDNIGHT = _T0 // _DAY * _DAY
_HELD = [
    HeldOn(cloud="c", instance_type=kind, price_class=PriceClass.SPOT, gpus=gpus)
    for kind, gpus in (("t", None), ("u", 2.0))
]


@pytest.mark.parametrize("seed", range(6))
def test_days_that_are_summed_up_read_the_same_as_their_hours(database: RecordDatabase, seed: int) -> None:
    """Whatever is written late, deleted, and asked for."""
    random, jobs = Random(seed), [JobName(""), JobName("a"), JobName("b")]  # noqa: S311
    truth: dict[LedgerHour, dict[str, dict[Account, float]]] = {}
    for _ in range(80):
        hour = LedgerHour(_MIDNIGHT + 3600.0 * random.randrange(_DAYS * 24), random.choice(jobs))
        counted, writer = {random.choice(list(Account)): random.uniform(1, 9)}, random.choice("xy")
        seconds = sum(counted.values())
        [account] = counted
        database.write_hours({hour: counted}, {hour: {(account, _held_for(account)): seconds}}, writer)
        truth.setdefault(hour, {})[writer] = counted
        if random.random() < 0.5:
            database.sum_up(_MIDNIGHT + random.uniform(2, _DAYS + 1) * _DAY)
        if random.random() < 0.1:
            before = _MIDNIGHT + random.uniform(0, _DAYS) * _DAY
            rows = sorted((each.begins for each, written in truth.items() for _ in written), reverse=True)
            most = random.choice([1000, len(rows) - 1])
            database.prune(before, most)
            before = before if len(rows) <= most else max(before, math.nextafter(rows[most], math.inf))
            truth = {each: written for each, written in truth.items() if each.begins >= before}
        since, until = sorted(_MIDNIGHT + 3600.0 * random.randrange(-24, _DAYS * 24 + 24) for _ in range(2))
        _assert_reads(database, truth, since, until)
        _assert_reads(database, truth, 0.0, float("inf"))


def test_the_hours_of_one_job_are_read_without_those_of_the_others(tmp_path: Path) -> None:
    """A month of 150 jobs took 80 ms of a processor, of which 70 were for the other jobs."""
    database = RecordDatabase.open(file_url(tmp_path / "record.sqlite"))
    jobs = [JobName(f"job-{number}") for number in range(100)]
    for hour in range(20):
        counted = {LedgerHour(_HOUR + 3600.0 * hour, job): {Account.TRAINING: 1.0} for job in jobs}
        database.write_hours(counted, {}, "x")
    read = list[int]()
    connection = database._engine.raw_connection()  # The only one, which each reader takes from the pool in turn.
    assert isinstance(connection.driver_connection, sqlite3.Connection)
    connection.driver_connection.set_progress_handler(lambda: read.append(100), 100)
    connection.close()
    assert len(database.read_hourly(0.0, float("inf"), None)) == 20
    of_all = sum(read)
    read.clear()
    assert len(database.read_hourly(0.0, float("inf"), jobs[7])) == 20
    assert sum(read) < of_all / 10
    database.close()


def _assert_reads(
    database: RecordDatabase, truth: dict[LedgerHour, dict[str, dict[Account, float]]], since: float, until: float
) -> None:
    jobs: dict[JobName, dict[Account, float]] = {}
    hourly: dict[float, dict[str, float]] = {}
    for hour, written in truth.items():
        for account, seconds in (pair for counted in written.values() for pair in counted.items()):
            if since <= hour.begins < until:
                of_job = jobs.setdefault(hour.job, {})
                of_job[account] = of_job.get(account, 0.0) + seconds
                of_hour = hourly.setdefault(hour.begins, {}) if hour.job else {}
                of_hour[account] = of_hour.get(account, 0.0) + seconds
    assert database.read_hours(since, until) == {job: pytest.approx(counted) for job, counted in jobs.items()}
    found = database.read_hourly(since, until, None)
    assert found == {begins: pytest.approx(counted) for begins, counted in hourly.items()}
    of_one: dict[JobName, dict[float, dict[str, float]]] = {}
    for hour, written in truth.items():
        for account, seconds in (pair for counted in written.values() for pair in counted.items()):
            if since <= hour.begins < until:
                of_hour = of_one.setdefault(hour.job, {}).setdefault(hour.begins, {})
                of_hour[account] = of_hour.get(account, 0.0) + seconds
    for job in ("a", "b", "nobody"):
        wanted = of_one.get(JobName(job), {})
        found = database.read_hourly(since, until, JobName(job))
        assert found == {begins: pytest.approx(counted) for begins, counted in wanted.items()}
    held: dict[JobName, dict[HeldOn, float]] = {}
    for job, account, seconds in ((job, *pair) for job, counted in jobs.items() for pair in counted.items()):
        of_kinds, kind = held.setdefault(job, {}), _held_for(account)
        of_kinds[kind] = of_kinds.get(kind, 0.0) + seconds
    assert database.read_machines(since, until) == {job: pytest.approx(kinds) for job, kinds in held.items()}
    of_all = Counter[HeldOn]()
    for kinds in held.values():
        of_all.update(kinds)
    assert database.read_held(since, until) == pytest.approx(dict(of_all))
    by_pool = {job: Counter[Account]() for job in jobs}
    for job, pools in database.read_pools(since, until).items():
        for pool, time in pools.items():
            assert {_held_for(account).pool for account in time.worker_seconds} == {pool}
            by_pool[job].update(time.worker_seconds)
    assert by_pool == {job: pytest.approx(counted) for job, counted in jobs.items()}


def _held_for(account: Account) -> HeldOn:
    """Returns a kind of machine, so that the machines of a test follow from its accounts."""
    return _HELD[list(Account).index(account) % len(_HELD)]


def test_no_more_rows_of_the_ledger_are_kept_than_entries(database: RecordDatabase) -> None:
    """Whoever makes a thousand jobs an hour fills no disk. An hour goes as a whole."""
    for hour in range(3):
        jobs = [JobName(f"job-{number}") for number in range(4)]
        database.write_hours({LedgerHour(_HOUR + 3600 * hour, job): {Account.TRAINING: 1.0} for job in jobs}, {}, "one")
    database.prune(0.0, 8)
    assert sum(len(hours) for hours in database.read_hours(_HOUR + 3600, _HOUR + 9e9).values()) == 4
    assert database.read_hours(_HOUR, _HOUR + 3600) == {}
    database.prune(0.0, 7)
    assert database.read_hours(_HOUR, _HOUR + 7200) == {}
    assert len(database.read_hours(_HOUR + 7200, _HOUR + 9e9)) == 4


def _changes(begins: float, *stays: HostStay) -> StayChanges:
    """The hour that begins then, and stays, of the job."""
    span = WantedSpan(
        begins=begins,
        ends=begins + 3600,
        least=2,
        most=4,
        in_process=True,
        restarts=1,
        costs=MeasuredCosts(step_seconds=0.5, change_seconds=0.125),
        in_rounds=True,
    )
    return StayChanges({(_JOB, begins): span}, {(_JOB, stay.host, stay.begins): stay for stay in stays})


def test_stays_are_replaced_and_end_with_the_spans_of_their_writer(database: RecordDatabase) -> None:
    """A supervisor that was killed has not written how a host's stay ended."""
    first, second = HostStay(host=Host("a"), begins=_HOUR), HostStay(host=Host("b"), begins=_HOUR + 5)
    database.write_stays(_changes(_HOUR, first, second), "one")
    gone = replace(second, ends=_HOUR + 60, gone=True, noticed=_HOUR + 30, deadline=_HOUR + 61)
    database.write_stays(_changes(_HOUR, gone), "one")
    database.write_stays(_changes(_HOUR + 3600, replace(first, begins=_HOUR + 3605)), "two")
    found = database.read_capacity(_JOB, _HOUR, math.inf, 10)
    assert [(span.begins, span.costs.step_seconds, span.restarts) for span in found.spans] == [
        (_HOUR, 0.5, 1),
        (_HOUR + 3600, 0.5, 1),
    ]
    assert found.stays == [
        gone,
        replace(first, ends=_HOUR + 3600),
        replace(first, begins=_HOUR + 3605, ends=_HOUR + 7200),
    ]
    assert not found.is_cut
    assert [stay.begins for stay in database.read_capacity(_JOB, _HOUR + 3600, math.inf, 10).stays] == [_HOUR + 3605]
    assert not database.read_capacity(JobName("other"), 0.0, math.inf, 10).spans


def test_an_answer_with_too_many_stays_has_no_hour_in_which_one_is_missing(database: RecordDatabase) -> None:
    hours = [_HOUR + 3600 * number for number in range(4)]
    for begins in hours:
        ended = HostStay(host=Host("a"), begins=begins, ends=begins + 9, gone=True)
        database.write_stays(_changes(begins, ended, replace(ended, host=Host("b"))), "one")
    found = database.read_capacity(_JOB, 0.0, math.inf, 3)
    assert ([span.begins for span in found.spans], len(found.stays), found.is_cut) == (hours[3:], 3, True)


def test_old_stays_are_deleted_with_the_hours_in_which_they_are_missing(database: RecordDatabase) -> None:
    for number in range(4):
        begins = _HOUR + 3600 * number
        ended = HostStay(host=Host("a"), begins=begins, ends=begins + 9, gone=True)
        database.write_stays(_changes(begins, ended, HostStay(host=Host("b"), begins=begins)), f"writer {number}")
    database.write_stays(_changes(begins, HostStay(host=Host("c"), begins=_HOUR)), f"writer {number}")
    database.prune(_HOUR + 10, 100)
    found = database.read_capacity(_JOB, 0.0, math.inf, 10)
    assert [span.begins - _HOUR for span in found.spans] == [3600, 7200, 10800]
    assert [(stay.host, stay.begins - _HOUR) for stay in found.stays if stay.begins == _HOUR] == [("c", 0)]
    database.prune(0.0, 1)
    found = database.read_capacity(_JOB, 0.0, math.inf, 10)
    assert [span.begins - _HOUR for span in found.spans] == [10800]
    assert [(stay.host, stay.begins - _HOUR) for stay in found.stays] == [
        ("a", 10800),
        ("c", 0),
        ("b", 10800),
    ]


def _stays_of(job: JobName, *stays: HostStay) -> StayChanges:
    """Stays of a job, each in an hour of its own."""
    spans = _changes(_HOUR).spans.values()
    begins = {stay.begins // 3600 * 3600 for stay in stays}
    return StayChanges(
        {(job, at): replace(span, begins=at, ends=at + 3600) for span in spans for at in begins},
        {(job, stay.host, stay.begins): stay for stay in stays},
    )


def _ended(number: int) -> HostStay:
    return HostStay(host=Host("a"), begins=_HOUR + 3600 * number, ends=_HOUR + 3600 * number + 9, gone=True)


def test_a_job_whose_hosts_come_and_go_pushes_out_no_stay_of_another_job(database: RecordDatabase) -> None:
    """Although that is older. Of the busy job the earliest go, together with their hours."""
    quiet, busy = JobName("quiet"), JobName("busy")
    database.write_stays(_stays_of(quiet, _ended(0), _ended(1)), "one")
    database.write_stays(_stays_of(busy, *(_ended(number) for number in range(2, 20))), "one")
    database.write_stays(StayChanges({}, {(busy, Host("b"), _HOUR): HostStay(host=Host("b"), begins=_HOUR)}), "two")
    database.prune(0.0, 12)
    kept, found = database.read_capacity(quiet, 0.0, math.inf, 100), database.read_capacity(busy, 0.0, math.inf, 100)
    assert [stay.begins - _HOUR for stay in kept.stays] == [0, 3600]
    assert [span.begins - _HOUR for span in kept.spans] == [0, 3600]
    assert [(stay.begins - _HOUR) / 3600 for stay in found.stays] == list(range(10, 20))
    assert [(span.begins - _HOUR) / 3600 for span in found.spans] == list(range(10, 20))


def test_of_more_jobs_than_may_be_kept_the_earliest_go(database: RecordDatabase) -> None:
    for number in range(5):
        database.write_stays(_stays_of(JobName(f"job-{number}"), _ended(number)), "one")
    database.prune(0.0, 3)
    found = {number: database.read_capacity(JobName(f"job-{number}"), 0.0, math.inf, 9).stays for number in range(5)}
    assert [number for number, stays in found.items() if stays] == [2, 3, 4]


@pytest.mark.parametrize(
    ("counts", "most", "share"),
    [
        ([], 0, None),
        ([3, 4], 7, None),
        ([3, 4], 6, 3),
        ([1, 1, 100], 12, 10),
        ([5, 5, 5], 10, 3),
        ([1, 1, 1], 2, 1),
        ([2, 9, 9], 11, 4),
    ],
)
def test_no_job_has_less_than_its_share_for_another_one_with_more(
    counts: list[int], most: int, share: int | None
) -> None:
    assert fair_share(counts, most) == share


def test_the_hosts_of_a_pool_are_read_for_all_jobs(database: RecordDatabase) -> None:
    """Of whatever price class, and each with an end. Of too many the earliest are left out, and since when is said."""
    fixed = replace(_SPOT.pool, price_class=PriceClass.ON_DEMAND)
    first = HostStay(host=Host("a"), begins=_HOUR, ends=_HOUR + 9, gone=True, pool=_SPOT.pool)
    there = replace(first, host=Host("b"), ends=None, gone=False, pool=fixed)
    elsewhere = replace(first, host=Host("c"), pool=replace(fixed, zone="elsewhere"))
    database.write_stays(_changes(_HOUR, first, there, elsewhere, replace(elsewhere, host=Host("d"), pool=None)), "one")
    other = JobName("other")
    late = replace(first, host=Host("a"), begins=_HOUR + 20, ends=_HOUR + 30)
    database.write_stays(StayChanges({}, {(other, late.host, late.begins): late}), "one")
    pool = MachinePool(cloud="acs", zone="b", instance_type="gn7i")
    found = database.read_pool_stays(pool, _HOUR, _HOUR + 3600, 9)
    assert found == PoolCapacity({_JOB: [first, replace(there, ends=_HOUR + 3600)], other: [late]}, _HOUR)
    found = database.read_pool_stays(pool, _HOUR, _HOUR + 3600, 2)
    assert found == PoolCapacity({other: [late], _JOB: [replace(there, ends=_HOUR + 3600)]}, _HOUR + 9, is_cut=True)
    assert not database.read_pool_stays(pool, _HOUR - 9, _HOUR, 9).stays
