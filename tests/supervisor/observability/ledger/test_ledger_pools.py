"""The hours of the ledger and the stays of hosts are of the same pools."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.capacity import MachinePool, PriceClass
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Capability, Phase, SupervisedJob
from supervisor.domain.ledger import Account, HeldOn
from supervisor.domain.stays import HostStay
from supervisor.observability.journal import JobChanged
from supervisor.observability.ledger.accounts import hosts_by_account, workers_by_account
from supervisor.observability.ledger.book import LedgerBook
from supervisor.observability.ledger.machines import HostMachines
from supervisor.observability.ledger.stays import StayBook
from tests.supervisor.decide.decide_builders import first, hosts, observing, running_job, suspended_job
from tests.supervisor.observability.ledger.test_ledger_accounts import jobs
from tests.supervisor.observability.ledger.test_ledger_book import T0, HandClock

_SPOT = HeldOn(cloud="aws", zone="a", instance_type="p5", price_class=PriceClass.SPOT)


class _Books:
    """The ledger and the stays of one job, which hear of the same changes, and what can be seen of machines."""

    def __init__(self, seen: Mapping[Host, HeldOn]) -> None:
        self.clock, self.seen = HandClock(), dict(seen)
        machines = HostMachines(self.clock, self._look)
        self.ledger, self._stays = LedgerBook(self.clock, machines), StayBook(self.clock, machines=machines)
        self.job: SupervisedJob | None = None

    def _look(self, _job: JobName, asked: Collection[Host]) -> Mapping[Host, HeldOn]:
        return {host: self.seen[host] for host in asked if host in self.seen}

    def becomes(self, job: SupervisedJob) -> None:
        before, self.job = self.job, job
        for book in (self.ledger, self._stays):
            book.on_change(JobChanged(before, job, self.clock.now()))

    def written(self, after: float = 0.0) -> None:
        """Both are asked for what is to be written, once a minute."""
        self.clock.at += after
        self.ledger.waiting()
        self._stays.waiting()

    @property
    def stays(self) -> list[HostStay]:
        return sorted(self._stays.waiting().stays.values(), key=lambda stay: (stay.host, stay.begins))

    @property
    def staying(self) -> Mapping[Host, HostStay]:
        return {stay.host: stay for stay in self.stays if stay.ends is None}

    def counted(self) -> Counter[MachinePool]:
        """How many workers the ledger counts in each pool now."""
        self.ledger.counted()
        before = dict(self.ledger.totals.held)
        self.clock.at += 1.0
        self.ledger.counted()
        found = Counter[MachinePool]()
        for on, seconds in self.ledger.totals.held.items():
            found[on.pool] += round(seconds - before.get(on, 0.0))
        return +found

    def agree(self) -> bool:
        """Whether each host that the job holds has a stay of its pool; of a job that wants no workers, none has one."""
        self.written()
        staying, counted = self.staying, self.counted()
        if self.job is None or not _wants_workers(self.job):
            return not staying
        held = [host for of in hosts_by_account(self.job).values() for host in of]
        pools = [staying[host].pool or MachinePool() for host in held if host in staying]
        return len(pools) == len(held) and Counter(pools) == counted


def _wants_workers(job: SupervisedJob) -> bool:
    """Whether nobody holds the job back, and it has not ended."""
    workers = workers_by_account(job)
    return bool(workers) and not job.held_back and not {Account.QUEUED, Account.PAUSED} & workers.keys()


_MACHINES = st.builds(
    HeldOn,
    cloud=st.sampled_from(["", "aws"]),
    zone=st.sampled_from(["", "a", "b"]),
    instance_type=st.sampled_from(["", "p5"]),
    price_class=st.sampled_from(PriceClass),
    gpus=st.sampled_from([None, 8.0]),
)
_SEEN = st.fixed_dictionaries({}, optional=dict.fromkeys(sorted(first(4)), st.just(_SPOT) | _MACHINES))
_LISTED = st.frozensets(st.sampled_from(sorted(first(4))))


def _made(hosts: frozenset[Host], phase: Phase = Phase.RUNNING, *, running: bool = True) -> SupervisedJob:
    """A job that wants workers, and whose controller makes its hosts."""
    job = observing(running_job(workers=4), running=running, hosts=hosts)
    spec = replace(job.spec, capabilities=frozenset({Capability.MAKES_HOSTS}))
    return replace(job, spec=spec, decision=replace(job.decision, phase=phase, hosts=hosts))


_WANTING = st.builds(_made, _LISTED, st.sampled_from([Phase.RUNNING, Phase.STOPPING]), running=st.booleans())
_STEPS = st.lists(
    st.tuples(st.none() | _WANTING | jobs(), st.none() | _SEEN, st.sampled_from([60.0, 10.0, 700.0])),
    min_size=2,
    max_size=8,
)


@given(steps=_STEPS)
def test_the_ledger_and_the_stays_have_each_host_in_the_same_pool(
    steps: list[tuple[SupervisedJob | None, dict[Host, HeldOn] | None, float]],
) -> None:
    """Whatever a job does, whenever an agent or a label says something of a machine, and if it says less later."""
    books = _Books({})
    for job, seen, seconds in steps:
        books.seen = books.seen if seen is None else seen
        if job is not None:
            books.becomes(job)
            assert books.agree()
        books.written(seconds)
        assert books.agree()


def test_a_zone_that_becomes_known_late_is_that_of_both() -> None:
    """The type and the price class are enough for a price, and not for a pool."""
    books = _Books(dict.fromkeys(first(2), replace(_SPOT, zone="")))
    books.becomes(running_job(workers=2))
    books.seen = dict.fromkeys(first(2), _SPOT)
    books.written(60.0)
    assert books.counted() == {_SPOT.pool: 2}
    assert {stay.pool for stay in books.staying.values()} == {_SPOT.pool}


def test_neither_looks_for_longer_than_ten_minutes() -> None:
    books = _Books({})
    books.becomes(running_job(workers=2))
    books.written(600.0)
    books.seen = dict.fromkeys(first(2), _SPOT)
    books.written(60.0)
    assert books.counted() == {MachinePool(): 2}
    assert {stay.pool for stay in books.staying.values()} == {None}


def test_a_host_that_is_held_later_is_looked_at_again() -> None:
    """A stand-alone launcher may list hosts whose machines begin to exist hours later."""
    books = _Books({})
    waiting = replace(running_job(workers=2), decision=replace(suspended_job().decision, hosts=frozenset()))
    books.becomes(observing(waiting, running=False, hosts=first(2)))
    books.written(3600.0)
    books.seen = dict.fromkeys(first(2), _SPOT)
    books.becomes(running_job(workers=2))
    assert books.counted() == {_SPOT.pool: 2}
    assert {stay.pool for stay in books.staying.values()} == {_SPOT.pool}


def test_what_is_known_of_a_machine_stays_so_when_its_agent_is_gone() -> None:
    books = _Books(dict.fromkeys(first(2), _SPOT))
    books.becomes(running_job(workers=2))
    books.seen = dict.fromkeys(first(3), HeldOn())
    books.becomes(running_job(workers=3))
    books.written(60.0)
    assert books.counted() == {_SPOT.pool: 2, MachinePool(): 1}
    assert [stay.pool for stay in books.stays] == [_SPOT.pool, _SPOT.pool, None]


def test_what_is_known_of_a_part_stays_so_while_the_rest_is_looked_for() -> None:
    part = replace(_SPOT, zone="")
    books = _Books(dict.fromkeys(first(2), part))
    books.becomes(running_job(workers=2))
    books.seen = {}
    books.written(60.0)
    assert books.counted() == {part.pool: 2}
    assert [stay.pool for stay in books.stays] == [part.pool] * 2


def test_another_machine_under_the_same_name_is_another_stay() -> None:
    """A pod that is created again after a suspension may be on another node."""
    books, other = _Books(dict.fromkeys(hosts(1), _SPOT)), replace(_SPOT, zone="b")
    books.becomes(_made(hosts(1)))
    books.clock.at = 100.0
    books.becomes(_made(frozenset(), Phase.STOPPING, running=False))
    books.seen = dict.fromkeys(hosts(1), other)
    books.clock.at = 200.0
    books.becomes(_made(hosts(1)))
    assert [(stay.pool, stay.begins - T0, stay.gone) for stay in books.stays] == [
        (_SPOT.pool, 0.0, False),
        (other.pool, 200.0, False),
    ]
    assert books.counted() == {other.pool: 1}
