"""What processes say divides the time of their job's run, and nothing is counted twice or lost."""

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import SupervisedJob
from supervisor.domain.ledger import Account, TimeSpent
from supervisor.domain.order import Worker
from supervisor.observability.journal import JobChanged
from supervisor.observability.ledger.book import LedgerBook
from supervisor.observability.ledger.hours import HOUR
from supervisor.observability.ledger.words import SpokenTime
from tests.supervisor.decide.decide_builders import running_job, suspended_job
from tests.supervisor.observability.ledger.test_ledger_book import HandClock

_JOB = running_job()
_WORKERS = 6
_STEP_SECONDS = 0.5
_NOISE = 1e-3
"""Instants of the wall clock are exact to 2e-7 s."""


@dataclass
class TruthfulProcess:
    """A rank 0 that knows what it does; `highest` is the highest step that anybody has told before it began."""

    name: str
    first: int
    highest: int
    seconds: float = 0.0
    spent: Counter[Account] = field(default_factory=Counter)
    step: int = 0
    reached: int = 0
    made: int = 0
    untold: Counter[Account] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.step = self.reached = self.first

    def spend(self, account: Account, seconds: float) -> None:
        self.seconds += seconds
        self.spent[account] += seconds  # type: ignore[assignment]
        self.untold[account] += seconds  # type: ignore[assignment]

    def make_step(self) -> None:
        self.step, self.made, self.seconds = self.step + 1, self.made + 1, self.seconds + _STEP_SECONDS
        again = self.step <= self.highest
        self.untold[Account.REPEATING if again else Account.TRAINING] += _STEP_SECONDS  # type: ignore[assignment]
        self.highest, self.reached = max(self.highest, self.step), max(self.reached, self.step)

    def words(self) -> TimeSpent:
        return TimeSpent(
            seconds=self.seconds, spent=dict(self.spent), first=self.first, highest=self.reached, made=self.made
        )


def _worker(process: str, rank: int | None = 0) -> Worker:
    return Worker(process, _JOB.id, 1, Host("host"), rank)


def _counted(book: LedgerBook, job: JobName = _JOB.name) -> dict[Account, float]:
    total = Counter[Account]()
    for hour, counted in book.waiting().hours.items():
        if hour.job == job:
            total.update(counted)
    return {account: seconds for account, seconds in total.items() if seconds > _NOISE}


def _book(clock: HandClock, job: SupervisedJob = _JOB) -> LedgerBook:
    book = LedgerBook(clock)
    book.begin([job])
    return book


_SPENT = st.tuples(st.sampled_from([Account.SAVING, Account.AGREEING, Account.CHANGING]), st.floats(0.125, 60))
_DONE = st.one_of(_SPENT, st.integers(1, 200), st.tuples(st.just("returns"), st.integers(1, 30)), st.just("tells"))
_LIFE = st.tuples(st.floats(0, 5), st.floats(0.125, 20), st.lists(_DONE, min_size=1, max_size=8), st.booleans())


@settings(max_examples=150)
@given(before_the_hour=st.floats(0, 300), lives=st.lists(_LIFE, min_size=1, max_size=4), data=st.data())
def test_the_ledger_equals_what_processes_have_said(
    before_the_hour: float, lives: list[tuple[float, float, list[object], bool]], data: st.DataObject
) -> None:
    """One process after the other; what one does not say before it is killed remains unmeasured."""
    clock = HandClock()
    clock.ahead += HOUR - before_the_hour
    book, truth, told = _book(clock), Counter[Account](), 0
    for number, (gap, starting, done, says_last_words) in enumerate(lives):
        began = clock.at = clock.at + gap
        truth[Account.UNMEASURED] += gap  # type: ignore[assignment]
        process = TruthfulProcess(f"p{number}", data.draw(st.integers(0, told)), told)
        process.spend(Account.STARTING, starting)
        process.make_step()
        for each in [*done, *(["tells"] if says_last_words else [])]:
            match each:
                case "tells":
                    clock.at = began + process.seconds
                    book.on_spent(_worker(process.name), process.words())
                    truth.update(process.untold)
                    process.untold.clear()
                    told = max(told, process.reached)
                case int(steps):
                    for _ in range(steps):
                        process.make_step()
                case ("returns", int(steps)):
                    process.step = max(process.first, process.step - steps)
                case (Account() as account, float(seconds)):
                    process.spend(account, seconds)
        clock.at = began + process.seconds
        truth[Account.UNMEASURED] += sum(process.untold.values())
    found = _counted(book)
    expected = {account: _WORKERS * seconds for account, seconds in truth.items() if seconds > _NOISE}
    assert found == pytest.approx(expected, abs=_NOISE)
    assert sum(found.values()) == pytest.approx(_WORKERS * clock.at)
    # The sums that only grow say the same: a run's seconds are what was told and what was not.
    counted = {account: seconds for (_, account), seconds in book.counted().items()}
    grown: dict[Account, float] = {account: seconds for (_, account), seconds in book.told.items()}
    grown[Account.UNMEASURED] = counted.pop(Account.UNMEASURED) - sum(grown.values())
    assert not counted
    assert {account: seconds for account, seconds in grown.items() if seconds > _NOISE} == pytest.approx(found)


def test_a_process_that_was_there_before_the_supervisor_is_heard_from_its_second_word_on() -> None:
    """Which part of its sums lies in the time of this supervisor is not known."""
    clock = HandClock()
    book, process = _book(clock), TruthfulProcess("p", 0, 0)
    process.spend(Account.STARTING, 5.0)
    process.spend(Account.SAVING, 500.0)
    process.make_step()
    clock.at += 60
    book.on_spent(_worker("p"), process.words())
    assert _counted(book) == {Account.UNMEASURED: 360}
    process.spend(Account.SAVING, 10.0)
    clock.at += 60
    book.on_spent(_worker("p"), replace(process.words(), seconds=process.seconds + 50))
    assert _counted(book) == pytest.approx({Account.UNMEASURED: 360, Account.SAVING: 60, Account.TRAINING: 300})


def test_only_the_run_is_divided() -> None:
    """What the job does while it stops or waits is known without its processes."""
    clock = HandClock()
    book, process = _book(clock), TruthfulProcess("p", 0, 0)
    process.spend(Account.STARTING, 2.0)
    process.make_step()
    clock.at += 10
    book.on_change(JobChanged(_JOB, suspended_job(), clock.now()))
    clock.at += 100
    process.spend(Account.SAVING, 500.0)
    book.on_spent(_worker("p"), process.words())
    found = _counted(book)
    assert found[Account.WAITING] == 600
    assert sum(found.values()) == 660


@pytest.mark.parametrize(
    "said",
    [
        TimeSpent(seconds=1e12, spent={Account.SAVING: 1e12}, first=0, highest=0, made=0),
        TimeSpent(seconds=0.0, spent={Account.SAVING: 1e12}, first=2**53, highest=0, made=2**53),
        TimeSpent(seconds=50.0, spent={Account.SAVING: 1e12, Account.STARTING: 1e12}, first=0, highest=1, made=0),
    ],
    ids=["all time", "no time", "more than its time"],
)
def test_a_process_that_says_nonsense_moves_only_what_its_job_has(said: TimeSpent) -> None:
    clock = HandClock()
    book = _book(clock)
    for seconds in (60.0, 60.0):
        clock.at += seconds
        book.on_spent(_worker("p"), said)
        book.on_spent(_worker("p"), replace(said, seconds=said.seconds * 2, made=0))
    found = _counted(book)
    assert sum(found.values()) == pytest.approx(720)
    assert all(seconds >= 0 for seconds in found.values())


def test_no_more_time_is_divided_than_a_process_has_had() -> None:
    said = TimeSpent(seconds=50.0, spent={Account.SAVING: 90.0, Account.STARTING: 10.0}, first=0, highest=1, made=1)
    parts = SpokenTime().heard("p", said, untold=60.0)
    assert {account: part for account, part in parts.items() if part} == {Account.SAVING: 45.0, Account.STARTING: 5.0}


def test_another_rank_and_an_unknown_job_are_not_heard() -> None:
    clock = HandClock()
    book = _book(clock)
    clock.at += 60
    said = TimeSpent(seconds=60.0, spent={Account.SAVING: 30.0}, first=0, highest=1, made=1)
    book.on_spent(_worker("p", rank=1), said)
    book.on_spent(_worker("p", rank=None), said)
    book.on_spent(replace(_worker("p"), job=_JOB.id._replace(name=JobName("other"))), said)
    assert _counted(book) == {Account.UNMEASURED: 360}


def test_a_word_that_comes_after_its_hour_was_written_changes_that_hour() -> None:
    """It is written again, whole."""
    clock = HandClock()
    clock.ahead += HOUR - 30
    book, process = _book(clock), TruthfulProcess("p", 0, 0)
    process.spend(Account.STARTING, 10.0)
    clock.at += 60
    book.written(book.waiting())
    process.spend(Account.SAVING, 30.0)
    process.make_step()
    process.seconds = 60.0
    book.on_spent(_worker("p"), process.words())
    hours = {hour.begins: counted for hour, counted in book.waiting().hours.items() if hour.job == _JOB.name}
    assert [sum(counted.values()) for counted in hours.values()] == [180, 180]
    assert all(counted.get(Account.UNMEASURED, 0.0) == 0 for counted in hours.values())


def test_a_word_that_comes_much_later_does_not_begin_a_written_hour_anew() -> None:
    """What is known of that hour is in the database alone."""
    clock = HandClock()
    clock.ahead += HOUR - 30
    book, process = _book(clock), TruthfulProcess("p", 0, 0)
    process.spend(Account.STARTING, 40.0)
    process.make_step()
    clock.at += 1000
    book.written(book.waiting())
    book.on_spent(_worker("p"), replace(process.words(), seconds=1000.0))
    (counted,) = [counted for hour, counted in book.waiting().hours.items() if hour.job == _JOB.name]
    assert sum(counted.values()) == pytest.approx(_WORKERS * 970)
    assert counted[Account.UNMEASURED] == pytest.approx(0.0, abs=_NOISE)


def test_what_a_process_took_longer_than_the_run_is_of_its_start() -> None:
    """It had been started when nobody knew yet that the run goes on."""
    spoken = SpokenTime()
    said = TimeSpent(seconds=12.0, spent={Account.STARTING: 5.0}, first=0, highest=14, made=14)
    assert spoken.heard("p", said, untold=10.0) == {
        Account.STARTING: 3.0,
        Account.REPEATING: 0.0,
        Account.TRAINING: 7.0,
    }
