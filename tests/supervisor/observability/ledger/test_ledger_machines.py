"""On which kinds of machines the workers of a job are held: as many seconds as the ledger says that it holds."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.capacity import Machine, PriceClass
from supervisor.domain.job import SupervisedJob
from supervisor.domain.ledger import HELD, Account, HeldOn
from supervisor.observability.journal import JobChanged, JobForgotten
from supervisor.observability.ledger.accounts import held_hosts
from supervisor.observability.ledger.book import LedgerBook
from supervisor.observability.ledger.hours import HOUR
from supervisor.observability.ledger.machines import MachineBook
from tests.supervisor.decide.decide_builders import running_job, suspended_job, waiting_job
from tests.supervisor.observability.ledger.test_ledger_accounts import jobs
from tests.supervisor.observability.ledger.test_ledger_book import JOB, HandClock

_SPOT = HeldOn(cloud="aws", zone="a", instance_type="p5", price_class=PriceClass.SPOT, gpus=8.0)
_FIXED = replace(_SPOT, price_class=PriceClass.ON_DEMAND)


def _of(job: SupervisedJob) -> Mapping[HeldOn, int]:
    """The first host is on demand."""
    return Counter(_FIXED if host == min(job.observed.hosts) else _SPOT for host in held_hosts(job))


def _held(book: MachineBook) -> dict[HeldOn, float]:
    found = Counter[HeldOn]()
    for counted in book.waiting().values():
        found.update(counted)
    return dict(found)


def test_each_kind_of_machine_is_counted_while_it_is_held() -> None:
    clock = HandClock()
    book = MachineBook(clock, _of)
    book.begin([running_job()])
    clock.at += 10
    book.on_change(JobChanged(None, suspended_job(), clock.now()))
    clock.at += 100
    book.on_change(JobChanged(None, running_job(workers=3), clock.now()))
    clock.at += 1
    book.on_change(JobForgotten(running_job(), clock.now()))
    clock.at += 100
    assert _held(book) == {_FIXED: 11, _SPOT: 52}
    book.written(book.waiting())
    clock.at += HOUR
    book.written(book.waiting())
    assert not _held(book)


def test_a_machine_that_is_not_known_yet_is_looked_at_again() -> None:
    """Its agent may connect after the job has begun to run."""
    clock, known = HandClock(), HeldOn()
    book = MachineBook(clock, lambda job: {known: len(held_hosts(job))})
    book.begin([running_job()])
    clock.at += 10
    known = _SPOT
    assert _held(book) == {HeldOn(): 60}
    clock.at += 10
    assert _held(book) == {HeldOn(): 60, _SPOT: 60}


@given(states=st.lists(st.tuples(jobs(), st.floats(0.125, 500)), min_size=1, max_size=6))
def test_it_is_as_much_as_the_ledger_says_is_held(states: list[tuple[SupervisedJob, float]]) -> None:
    clock = HandClock()
    ledger, machines = LedgerBook(clock), MachineBook(clock, _of)
    for job, seconds in states:
        for book in (ledger, machines):
            book.on_change(JobChanged(None, job, clock.now()))
        clock.at += seconds
    total = Counter[Account]()
    for hour, counted in ledger.waiting().items():
        if hour.job == JOB:
            total.update(counted)
    assert sum(_held(machines).values()) == pytest.approx(sum(total[account] for account in HELD), abs=1e-3)


@pytest.mark.parametrize(
    ("machine", "is_known"),
    [
        (Machine(instance_type="p5", price_class=PriceClass.SPOT), True),
        (Machine(instance_type="p5"), False),
        (Machine(cloud="aws", price_class=PriceClass.SPOT), False),
    ],
)
def test_a_price_needs_the_type_and_whether_it_is_spot(machine: Machine, *, is_known: bool) -> None:
    assert HeldOn.of(machine, None).is_known is is_known


def test_a_job_that_waits_holds_nothing() -> None:
    assert not held_hosts(waiting_job())
