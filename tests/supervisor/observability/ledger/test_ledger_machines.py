"""On which kinds of machines the workers of a job are held: as many seconds as the ledger says that it holds."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.capacity import Machine, PriceClass
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import SupervisedJob
from supervisor.domain.ledger import HELD, Account, HeldOn
from supervisor.observability.journal import JobChanged, JobForgotten
from supervisor.observability.ledger.accounts import held_hosts
from supervisor.observability.ledger.book import LedgerBook
from supervisor.observability.ledger.hours import HOUR
from supervisor.observability.ledger.machines import MachineBook
from tests.supervisor.decide.decide_builders import first, running_job, suspended_job, waiting_job
from tests.supervisor.observability.ledger.test_ledger_accounts import jobs
from tests.supervisor.observability.ledger.test_ledger_book import JOB, HandClock

_SPOT = HeldOn(cloud="aws", zone="a", instance_type="p5", price_class=PriceClass.SPOT, gpus=8.0)
_FIXED = replace(_SPOT, price_class=PriceClass.ON_DEMAND)


def _of(_job: JobName, hosts: Collection[Host]) -> Mapping[HeldOn, int]:
    """The first host is on demand."""
    return Counter(_FIXED if host == min(first(9)) else _SPOT for host in hosts)


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
    book = MachineBook(clock, lambda _job, hosts: {known: len(hosts)})
    book.begin([running_job()])
    clock.at += 10
    known = _SPOT
    assert _held(book) == {HeldOn(): 60}
    clock.at += 10
    assert _held(book) == {HeldOn(): 60, _SPOT: 60}


def test_machines_are_looked_at_only_if_the_hosts_have_changed() -> None:
    clock, looks = HandClock(), list[Collection[Host]]()

    def look(_job: JobName, hosts: Collection[Host]) -> Mapping[HeldOn, int]:
        looks.append(hosts)
        return {_SPOT: len(hosts)}

    book = MachineBook(clock, look)
    book.begin([running_job()])
    for job in (running_job(), running_job(workers=3), running_job(workers=3)):
        clock.at += 10
        book.on_change(JobChanged(None, job, clock.now()))
        book.waiting()
    assert looks == [first(6), first(3)]
    assert _held(book) == {_SPOT: 150}


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


@pytest.mark.parametrize(("asked", "gpus"), [(2.0, 2.0), (0.0, 0.0), (-1.0, None), (None, None)])
def test_no_worker_has_fewer_than_no_gpus(asked: float | None, gpus: float | None) -> None:
    """As a tenant may ask for."""
    assert HeldOn.of(Machine(), asked).gpus == gpus


def test_a_job_that_waits_holds_nothing() -> None:
    assert not held_hosts(waiting_job())
