"""The hosts that were there for a job are noted as they come and go, also where a controller deletes their pods."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from supervisor.domain.agreement import Round
from supervisor.domain.capacity import PriceClass
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Capability, Framework, Phase, RequestKind, SupervisedJob, UserRequest
from supervisor.domain.ledger import HeldOn
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.domain.stays import HostStay, MeasuredCosts
from supervisor.observability.journal import JobChanged, JobForgotten, NoticeChanged
from supervisor.observability.ledger import stays as module
from supervisor.observability.ledger.hours import HOUR
from supervisor.observability.ledger.machines import HostMachines
from supervisor.observability.ledger.stays import StayBook
from tests.supervisor.decide.decide_builders import first, hosts, notice, noticed, observing, running_job, spec
from tests.supervisor.observability.ledger.test_ledger_book import JOB, T0, HandClock


class _Told:
    """A book that hears of one job, whose controller makes its hosts unless it is told otherwise."""

    def __init__(self, job: SupervisedJob, *, makes_hosts: bool = True) -> None:
        self.clock, self.notices, self.measured = HandClock(), dict[Host, ReclaimNotice](), MeasuredCosts()
        self.book = StayBook(self.clock, lambda _job: self.notices, lambda _job: self.measured)
        capabilities = frozenset({Capability.MAKES_HOSTS} if makes_hosts else ())
        self.job = replace(job, spec=replace(job.spec, capabilities=capabilities))
        self.book.begin([self.job])

    def changes(self, at: float, phase: Phase | None = None, **observed: Any) -> None:
        self.clock.at, before = at, self.job
        self.job = observing(before, **observed)
        if phase is not None:
            self.job = replace(self.job, decision=replace(self.job.decision, phase=phase))
        self.book.on_change(JobChanged(before, self.job, self.clock.now()))

    def announces(self, at: float, found: ReclaimNotice) -> None:
        self.clock.at = at
        known = self.notices.get(Host(found.subject.name))
        self.notices = noticed(found) if found.holds else {}
        self.book.on_change(NoticeChanged(known, found, self.clock.now()))

    @property
    def stays(self) -> Mapping[tuple[str, float], HostStay]:
        """By host and the seconds from the start until they began."""
        return {(host, begins - T0): stay for (_, host, begins), stay in self.book.waiting().stays.items()}

    def last_span(self) -> tuple[bool, bool]:
        """Return whether hosts change in process in the last span, and whether in rounds."""
        span = [*self.book.waiting().spans.values()][-1]
        return span.in_process, span.in_rounds

    @property
    def spans(self) -> list[tuple[float, float]]:
        return [(span.begins - T0, span.ends - T0) for span in self.book.waiting().spans.values()]


def _notice(seen: float, left: float = 120.0) -> ReclaimNotice:
    return notice(1, seen=T0 + seen, left=left)


def test_a_host_that_is_not_listed_any_more_while_the_job_runs_is_gone() -> None:
    told = _Told(running_job(workers=3))
    told.changes(50, hosts=hosts(2, 3))
    told.changes(70, hosts=first(3))
    assert told.stays["n1", 0] == HostStay(host=Host("n1"), begins=T0, ends=T0 + 50, gone=True)
    assert told.stays["n1", 70].ends is None
    assert told.stays["n2", 0].ends is None


def test_a_host_whose_pod_is_deleted_before_the_announced_instant_is_there_until_then() -> None:
    """The supervisor has scaled it in; another policy would have trained on it."""
    told = _Told(running_job(workers=3))
    told.announces(10, _notice(10))
    told.changes(30, hosts=hosts(2, 3))
    assert told.stays["n1", 0].ends is None
    told.clock.at = 200
    stay = told.stays["n1", 0]
    assert (stay.gone, stay.noticed, stay.deadline, stay.ends) == (True, T0 + 10, T0 + 130, T0 + 130)


def test_hosts_that_a_suspension_gives_back_are_there_until_the_job_runs_without_them() -> None:
    told = _Told(running_job(workers=3))
    told.changes(10, Phase.SUSPENDED, running=False, hosts=first(0))
    assert all(stay.ends is None for stay in told.stays.values())
    told.changes(90, Phase.RUNNING, running=True, run=2, hosts=hosts(1, 2, 4))
    ended = {key: stay.ends for key, stay in told.stays.items()}
    assert ended == {("n1", 0): None, ("n2", 0): None, ("n3", 0): T0 + 90, ("n4", 90): None}
    assert told.stays["n3", 0].gone


def test_a_host_that_its_list_names_for_ever_goes_with_its_notice() -> None:
    told = _Told(running_job(workers=3), makes_hosts=False)
    told.announces(10, _notice(10))
    gone = replace(_notice(10), state=NoticeState.GONE, ended_at=T0 + 131)
    told.announces(131, gone)
    told.changes(132, restarts=1)
    assert told.stays["n1", 0].ends == T0 + 131
    assert [begins for host, begins in told.stays if host == "n1"] == [0]
    told.notices = {}
    told.changes(500, restarts=2)
    assert told.stays["n1", 500].ends is None


def test_a_notice_that_is_withdrawn_leaves_the_host_there() -> None:
    told = _Told(running_job(workers=3), makes_hosts=False)
    told.announces(10, _notice(10))
    told.announces(40, replace(_notice(10), state=NoticeState.WITHDRAWN, ended_at=T0 + 40))
    stay = told.stays["n1", 0]
    assert (stay.noticed, stay.ends, stay.gone) == (T0 + 10, T0 + 40, False)
    assert told.stays["n1", 40] == HostStay(host=Host("n1"), begins=T0 + 40)


def test_a_span_says_how_hosts_change() -> None:
    """All launchers but elastic Horovod's change hosts in rounds, and in process where a round says so."""
    told = _Told(running_job(workers=3))
    assert told.last_span() == (True, False)
    told = _Told(running_job(replace(spec(), framework=Framework.TORCHRUN), workers=3))
    assert told.last_span() == (False, True)
    before = told.job
    in_process = Round(number=2, run=1, members=("a",), hosts=(Host("n1"),), in_process=True, since=T0)
    told.job = replace(before, decision=replace(before.decision, round=in_process))
    told.clock.at = 10
    told.book.on_change(JobChanged(before, told.job, told.clock.now()))
    assert told.last_span() == (True, True)


def test_a_span_is_within_an_hour_and_ends_when_nothing_is_wanted() -> None:
    """What was measured last holds, also when no process is connected any more."""
    told = _Told(running_job(workers=3))
    told.measured = MeasuredCosts(step_seconds=0.5)
    told.clock.at = HOUR + 10
    assert told.spans == [(0, HOUR), (HOUR, HOUR + 10)]
    told.measured = MeasuredCosts(checkpoint_seconds=4.0, change_seconds=0.1)
    asked = UserRequest(kind=RequestKind.SUSPEND, by="ann", at=T0)
    told.changes(HOUR + 20, request=asked)
    told.clock.at = HOUR + 500
    assert told.spans == [(0, HOUR), (HOUR, HOUR + 20)]
    assert {stay.ends for stay in told.stays.values()} == {T0 + HOUR + 20}
    last = told.book.waiting().spans[JOB, T0 + HOUR]
    assert last.costs == MeasuredCosts(step_seconds=0.5, checkpoint_seconds=4.0, change_seconds=0.1)
    told.changes(HOUR + 600, request=None)
    told.book.on_change(JobForgotten(told.job, T0 + HOUR + 700))
    assert told.spans[-1] == (HOUR + 600, HOUR + 700)


def test_another_size_is_another_span_and_restarts_are_counted() -> None:
    told = _Told(running_job(workers=3))
    told.changes(10, running=False)
    told.changes(20, running=True, run=2)
    told.job = replace(told.job, spec=replace(told.job.spec, requested_workers=4))
    told.changes(30)
    spans = list(told.book.waiting().spans.values())
    assert [(span.begins - T0, span.most, span.restarts) for span in spans] == [(0, 6, 1), (30, 4, 0)]


def test_what_is_written_is_forgotten_unless_it_changes() -> None:
    told = _Told(running_job(workers=2))
    told.book.written(told.book.waiting())
    changes = told.book.waiting()
    assert not changes.stays
    told.changes(5, hosts=first(1))
    assert [host for host, _ in told.stays] == ["n2"]


def test_what_waits_is_bounded_and_takes_its_hours_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 20)
    told = _Told(running_job(workers=2))
    went = list[float]()
    for number in range(200):
        told.changes(number * 60 + 5, hosts=first(1 + number % 2))
        if number % 2 == 0 and number:
            went.append(told.book.clock.now())
        changes = told.book.waiting()
        assert len(changes.spans) + len(changes.stays) <= 20
        for span in changes.spans.values():
            ended = {stay.ends for stay in changes.stays.values()}
            assert ended.issuperset(at for at in went if span.begins < at <= span.ends)
    assert changes.spans


def test_a_job_with_more_hosts_than_may_wait_keeps_its_present_span(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 6)
    told = _Told(running_job(workers=8))
    for number in range(20):
        told.changes(number * 10 + 5, hosts=first(7 + number % 2))
        changes = told.book.waiting()
    assert len(changes.stays) < 12
    assert [span.ends for span in changes.spans.values()] == [T0 + 195]


def test_a_job_whose_hosts_come_and_go_drops_nothing_of_another_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 40)
    told, quiet = _Told(running_job(workers=2)), replace(running_job(workers=3), name=JobName("quiet"))
    told.book.begin([quiet])
    for number in range(200):
        told.changes(number * 10 + 5, hosts=first(1 + number % 2))
        changes = told.book.waiting()
        assert len(changes.spans) + len(changes.stays) <= 40
    assert [(span.begins, span.ends) for (job, _), span in changes.spans.items() if job == "quiet"] == [(T0, T0 + 1995)]
    assert [host for job, host, _ in changes.stays if job == "quiet"] == ["n1", "n2", "n3"]


def test_a_stay_names_the_pool_of_its_machine() -> None:
    """As soon as that is known, also in the stay after a notice that is withdrawn. Then nobody looks again."""
    told, looks = _Told(running_job(workers=2)), list[Collection[Host]]()
    on = HeldOn(cloud="aws", zone="a", instance_type="p5")

    def look(_job: JobName, asked: Collection[Host]) -> Mapping[Host, HeldOn]:
        looks.append(asked)
        return dict.fromkeys(asked, on)

    told.book.machines = HostMachines(told.clock, look)
    assert {stay.pool for stay in told.stays.values()} == {on.pool}
    on = replace(on, price_class=PriceClass.SPOT)
    told.clock.at = 30
    assert {stay.pool for stay in told.stays.values()} == {on.pool}
    told.announces(60, _notice(60))
    told.announces(90, replace(_notice(60), state=NoticeState.WITHDRAWN, ended_at=T0 + 90))
    assert told.stays["n1", 90].pool == on.pool
    assert looks == [hosts(1, 2)] * 2
    told.changes(95, hosts=hosts(1, 2, 3))
    assert (told.stays["n3", 95].pool, looks[2:]) == (on.pool, [hosts(3)])


def test_a_machine_that_nobody_describes_is_not_looked_at_for_ever() -> None:
    """There may be 16,000 of them, and this is the loop's time."""
    told, looks = _Told(running_job(workers=2)), list[Collection[Host]]()

    def look(_job: JobName, asked: Collection[Host]) -> Mapping[Host, HeldOn]:
        looks.append(asked)
        return {}

    told.book.machines = HostMachines(told.clock, look)
    for at in range(0, 1500, 60):
        told.clock.at = at
        assert {stay.pool for stay in told.stays.values()} == {None}
    assert looks == [hosts(1, 2)] * 10
