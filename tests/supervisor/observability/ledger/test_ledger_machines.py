"""On which kinds of machines the workers of a job are held, and what they do there."""

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
from supervisor.domain.order import Worker
from supervisor.observability.journal import JobChanged, JobForgotten
from supervisor.observability.ledger.accounts import hosts_by_account
from supervisor.observability.ledger.book import LedgerBook
from supervisor.observability.ledger.hours import HOUR
from supervisor.observability.ledger.machines import HostMachines
from tests.supervisor.decide.decide_builders import first, running_job, suspended_job, waiting_job
from tests.supervisor.observability.ledger.test_ledger_accounts import jobs
from tests.supervisor.observability.ledger.test_ledger_book import JOB, HandClock
from tests.supervisor.observability.ledger.test_ledger_words import TruthfulProcess

_SPOT = HeldOn(cloud="aws", zone="a", instance_type="p5", price_class=PriceClass.SPOT, gpus=8.0)
_FIXED = replace(_SPOT, price_class=PriceClass.ON_DEMAND)


def _of(_job: JobName, hosts: Collection[Host]) -> Mapping[Host, HeldOn]:
    """The first host is on demand."""
    return {host: _FIXED if host == min(first(9)) else _SPOT for host in hosts}


def _held(book: LedgerBook) -> dict[HeldOn, float]:
    found = Counter[HeldOn]()
    for counted in book.waiting().held.values():
        for (_, on), seconds in counted.items():
            found[on] += seconds  # type: ignore[assignment]
    return dict(found)


def test_each_kind_of_machine_is_counted_while_it_is_held() -> None:
    clock = HandClock()
    book = LedgerBook(clock, HostMachines(clock, _of))
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
    book = LedgerBook(clock, HostMachines(clock, lambda _job, hosts: dict.fromkeys(hosts, known)))
    book.begin([running_job()])
    clock.at += 10
    known = _SPOT
    assert _held(book) == {HeldOn(): 60}
    clock.at += 20
    assert _held(book) == {HeldOn(): 180}
    clock.at += 10
    assert _held(book) == {HeldOn(): 180, _SPOT: 60}


@pytest.mark.parametrize("label_first", [True, False])
def test_what_two_descriptions_of_a_machine_say_is_known_together(*, label_first: bool) -> None:
    """The label says where it is, and the agent what it is and what it costs; either may be gone when one looks."""
    label = HeldOn(cloud="aws", zone="a", gpus=8.0)
    agent = HeldOn(instance_type="p5", price_class=PriceClass.SPOT)
    seen = [label, agent] if label_first else [agent, label]
    clock, looks = HandClock(), iter(seen)
    machines = HostMachines(clock, lambda _job, hosts: dict.fromkeys(hosts, next(looks)))
    job = running_job(workers=2)
    assert set(machines.of(job).values()) == {seen[0]}
    clock.at += 30
    assert set(machines.of(job).values()) == {_SPOT}


def test_of_another_machine_nothing_is_known_but_what_is_seen() -> None:
    """Also if less is seen of it than is known of the one before."""
    clock, seen = HandClock(), replace(_SPOT, instance_type="")
    machines = HostMachines(clock, lambda _job, hosts: dict.fromkeys(hosts, seen))
    job = running_job(workers=2)
    assert set(machines.of(job).values()) == {seen}
    clock.at += 30
    seen = HeldOn(zone="b", instance_type="p5")
    assert set(machines.of(job).values()) == {seen}


def test_only_machines_of_new_hosts_are_looked_at() -> None:
    clock, looks = HandClock(), list[Collection[Host]]()

    def look(_job: JobName, hosts: Collection[Host]) -> Mapping[Host, HeldOn]:
        looks.append(hosts)
        return dict.fromkeys(hosts, _SPOT)

    book = LedgerBook(clock, HostMachines(clock, look))
    book.begin([running_job()])
    for job in (running_job(), running_job(workers=3), running_job(workers=3), running_job(workers=4)):
        clock.at += 10
        book.on_change(JobChanged(None, job, clock.now()))
        book.waiting()
    assert looks == [first(6), first(4) - first(3)]
    assert _held(book) == {_SPOT: 180}


_STATE = st.tuples(jobs(), st.floats(0.125, 500), st.none() | st.floats(0, 1))


@given(states=st.lists(_STATE, min_size=1, max_size=6))
def test_the_accounts_of_all_machines_are_those_of_the_ledger(
    states: list[tuple[SupervisedJob, float, float | None]],
) -> None:
    """Account by account, of what is held, whatever a process says; of what is not held no machine is known."""
    clock = HandClock()
    book, process = LedgerBook(clock, HostMachines(clock, _of)), TruthfulProcess("p", 0, 0)
    for job, seconds, saving in states:
        book.on_change(JobChanged(None, job, clock.now()))
        clock.at += seconds
        process.spend(Account.SAVING, seconds * (saving or 0.0))
        process.seconds = clock.at
        if saving is not None:
            book.on_spent(Worker("p", job.id, 1, Host("host"), 0), process.words())
    changes, total, held = book.waiting(), Counter[Account](), Counter[Account]()
    for hour, counted in changes.hours.items():
        total.update({account: seconds for account, seconds in counted.items() if hour.job == JOB and account in HELD})
    for counted_on in changes.held.values():
        for (account, _), seconds in counted_on.items():
            held[account] += seconds  # type: ignore[assignment]
    assert dict(held) == pytest.approx(dict(total), abs=1e-3)
    assert sum(book.totals.held.values()) == pytest.approx(held.total(), abs=1e-3)


def test_what_a_process_says_holds_for_all_machines_of_its_run() -> None:
    """And for no machine that the run had before."""
    clock, process = HandClock(), TruthfulProcess("p", 0, 0)
    book = LedgerBook(clock, HostMachines(clock, _of))
    book.begin([running_job(workers=1)])
    clock.at += 100
    book.on_change(JobChanged(None, running_job(workers=3), clock.now()))
    clock.at += 100
    process.spend(Account.SAVING, 30.0)
    process.make_step()
    process.seconds = 100.0
    book.on_spent(Worker("p", running_job().id, 1, Host("host"), 0), process.words())
    [counted] = [counted for hour, counted in book.waiting().held.items() if hour.job == JOB]
    assert {key: seconds for key, seconds in counted.items() if seconds} == pytest.approx(
        {
            (Account.UNMEASURED, _FIXED): 100,
            (Account.SAVING, _FIXED): 30,
            (Account.TRAINING, _FIXED): 70,
            (Account.SAVING, _SPOT): 60,
            (Account.TRAINING, _SPOT): 140,
        }
    )


@pytest.mark.parametrize(("asked", "gpus"), [(2.0, 2.0), (0.0, 0.0), (-1.0, None), (None, None)])
def test_no_worker_has_fewer_than_no_gpus(asked: float | None, gpus: float | None) -> None:
    """As a tenant may ask for."""
    assert HeldOn.of(Machine(), asked).gpus == gpus


def test_a_job_that_waits_holds_nothing() -> None:
    assert not any(hosts_by_account(waiting_job()).values())
