"""The ledger counts each second once: over hours, changes, and supervisors that lead one after the other."""

from enum import Enum, auto

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servicekit.clock import Clock
from supervisor.domain.ids import JobName
from supervisor.domain.job import Result, SupervisedJob
from supervisor.domain.ledger import Account
from supervisor.domain.worker_time import WorkerTime
from supervisor.observability.journal import JobChanged, JobForgotten
from supervisor.observability.ledger import hours as module
from supervisor.observability.ledger.accounts import workers_by_account
from supervisor.observability.ledger.book import NOBODY, LedgerBook
from supervisor.observability.ledger.hours import HOUR
from supervisor.observability.record.database import RecordDatabase, file_url
from tests.supervisor.decide.decide_builders import observing, running_job, suspended_job, waiting_job

T0 = 1_700_000_000.0 // HOUR * HOUR
JOB = JobName("job")


class HandClock(Clock):
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.at = 0.0
        self.ahead = T0

    def now(self) -> float:
        return self.at + self.ahead

    def monotonic(self) -> float:
        return self.at


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


def _leading(clock: HandClock, *jobs: SupervisedJob) -> LedgerBook:
    book = LedgerBook(clock)
    book.begin(jobs)
    return book


def _change(book: LedgerBook, job: SupervisedJob) -> None:
    book.on_change(JobChanged(None, job, book.clock.now()))


def test_a_state_counts_until_the_next_one(clock: HandClock) -> None:
    book = _leading(clock, running_job())
    clock.at += 100
    _change(book, running_job(workers=4))
    clock.at += 10
    _change(book, suspended_job())
    clock.at += 5
    book.on_change(JobForgotten(suspended_job(), clock.now()))
    clock.at += 1000
    hours = book.waiting().hours
    (of_job,) = [counted for hour, counted in hours.items() if hour.job == JOB]
    assert of_job == {Account.UNMEASURED: 640, Account.MISSING: 20, Account.WAITING: 30}
    (of_all,) = [counted for hour, counted in hours.items() if hour.job == NOBODY]
    assert of_all == {Account.TRAINING: 1115}
    assert book.counted() == {("", account): seconds for account, seconds in of_job.items()}


def test_what_was_written_is_not_waiting_and_what_was_not_stays(clock: HandClock) -> None:
    book = _leading(clock, running_job())
    clock.at += HOUR - 10
    hours = book.waiting()
    book.written(hours)
    assert not [hour for hour in book.waiting().hours if hour not in hours.hours]
    clock.at += 20
    unwritten = book.waiting()
    clock.at += 1
    again = book.waiting()
    hours_waiting = [(hour.begins - T0, hour.job) for hour in again.hours]
    assert hours_waiting == [(0, NOBODY), (0, JOB), (HOUR, NOBODY), (HOUR, JOB)]
    assert again != unwritten
    book.written(unwritten)
    clock.at += 0.5
    # The first hour was written as it is. The second has grown since.
    assert {hour.begins - T0 for hour in book.waiting().hours} == {HOUR}


def test_what_is_counted_while_an_hour_is_written_is_written_the_next_time(clock: HandClock) -> None:
    """Also if the hour is over by then."""
    book = _leading(clock, running_job())
    clock.at += HOUR - 10
    hours = book.waiting()
    clock.at += 20
    _change(book, suspended_job())
    book.written(hours)
    counted = {hour.begins - T0: counted for hour, counted in book.waiting().hours.items() if hour.job == JOB}
    assert counted[0.0] == {Account.UNMEASURED: 6 * HOUR}


def test_hours_that_are_over_and_written_are_forgotten(clock: HandClock) -> None:
    """Also those that were written before they ended, and have not changed since."""
    book = _leading(clock, running_job())
    for _ in range(4 * 60):
        clock.at += HOUR / 60
        book.written(book.waiting())
    assert {hour.begins - T0 for hour in book._sums._hours} == {3 * HOUR}


@pytest.mark.parametrize("step", [600.0, -7200.0])
def test_a_clock_that_is_set_adds_nothing(clock: HandClock, step: float) -> None:
    book = _leading(clock, running_job())
    clock.at += 60
    clock.ahead += step
    clock.at += 60
    _change(book, running_job())
    assert sum(sum(counted.values()) for hour, counted in book.waiting().hours.items() if hour.job == JOB) == 720


def test_without_a_database_the_earliest_hours_are_given_up_and_that_is_known(
    clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As nobody has counted them, the report says so."""
    monkeypatch.setattr(module, "MAX_WAITING", 5)
    book = _leading(clock, running_job())
    clock.at += 4 * HOUR
    assert sorted({hour.begins - T0 for hour in book.waiting().hours}) == [2 * HOUR, 3 * HOUR]
    nobody = [counted for hour, counted in book.waiting().hours.items() if hour.job == NOBODY]
    assert sum(counted[Account.TRAINING] for counted in nobody) == 2 * HOUR


def test_sums_that_are_read_keep_no_more_hours_than_may_wait(clock: HandClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """While no database is there, a scrape of the metrics counts as well; the sums themselves lose nothing."""
    monkeypatch.setattr(module, "MAX_WAITING", 5)
    book = _leading(clock, running_job())
    for _ in range(20):
        clock.at += HOUR
        counted = book.counted()
        assert len(book._sums._hours) <= 5
    assert counted == {("", Account.UNMEASURED): 20 * 6 * HOUR}


_STATES = [running_job(), running_job(workers=3), suspended_job(), waiting_job()]


class LedgerEvent(Enum):
    """What happens to the ledger between two states of a job."""

    WRITTEN = auto()
    NOT_WRITTEN = auto()
    NEXT_LEADER = auto()


_STEP = st.tuples(st.floats(0.25, 3000), st.sampled_from([*_STATES, *LedgerEvent]))


@settings(max_examples=60)
@given(steps=st.lists(_STEP, min_size=1, max_size=25))
def test_the_ledger_equals_what_the_job_did_whoever_led(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[float, SupervisedJob | LedgerEvent]]
) -> None:
    """Worker-second by worker-second: an hour may be written often, and by several supervisors."""
    clock, job, leader, truth = HandClock(), running_job(), 0, dict[Account, float]()
    database = RecordDatabase.open(file_url(tmp_path_factory.mktemp("ledger") / "record.sqlite"))
    book = _leading(clock, job)
    for seconds, step in [*steps, (0.0, LedgerEvent.NEXT_LEADER)]:
        clock.at += seconds
        for account, workers in workers_by_account(job).items():
            truth[account] = truth.get(account, 0.0) + workers * seconds
        if isinstance(step, SupervisedJob):
            job = step
            _change(book, job)
            continue
        hours = book.waiting()
        if step is not LedgerEvent.NOT_WRITTEN:
            database.write_hours(hours.hours, hours.held, str(leader))
            book.written(hours)
        if step is LedgerEvent.NEXT_LEADER:
            book, leader = _leading(clock, job), leader + 1
    found = database.read_hours(0.0, float("inf"))
    hourly = [database.read_hourly(0.0, float("inf"), name) for name in (None, JOB, JobName("other"))]
    database.close()
    for each in hourly[:2]:
        assert WorkerTime.of(each.values()).seconds == pytest.approx(found[JOB])
        assert all(begins % HOUR == 0 for begins in each)
    assert hourly[2] == {}
    assert found[JOB] == pytest.approx({account: seconds for account, seconds in truth.items() if seconds})
    assert found[NOBODY][Account.TRAINING] == pytest.approx(clock.at)


def test_a_job_that_has_ended_costs_nothing(clock: HandClock) -> None:
    book = _leading(clock, observing(running_job(), running=False, result=Result.SUCCEEDED))
    clock.at += 100
    assert {hour.job for hour in book.waiting().hours} == {NOBODY}
