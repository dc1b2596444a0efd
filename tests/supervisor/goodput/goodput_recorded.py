"""A simulated job whose changes the real recorder writes into a real database, as the journal reports a real one's."""

import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.faults import Fault
from supervisor.decide.ranks import NO_RANKS, Ranks
from supervisor.domain.capacity import UNKNOWN_MACHINE
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.domain.stays import MeasuredCosts
from supervisor.goodput.decider import Decider
from supervisor.goodput.delays import Delays
from supervisor.goodput.model import GoodputCase, GoodputCosts, Score
from supervisor.goodput.supervised import supervised
from supervisor.goodput.timeline import BEGIN
from supervisor.observability.history import JobHistory
from supervisor.observability.journal import Change, JobChanged, NoticeChanged
from supervisor.observability.ledger.book import LedgerBook
from supervisor.observability.ledger.stays import StayBook
from supervisor.observability.record.database import file_url
from supervisor.observability.record.recorder import Recorder, RecordLimits
from supervisor.observability.record.stay_tables import JobCapacity

JOB = JobName("job")
AT_ONCE = Delays(poll=0.0, wire=0.0, discovery=0.0)
"""The supervisor sees what happens as it happens."""
MOST = 100_000


class SetClock(Clock):
    """A clock that a simulation moves."""

    def __init__(self) -> None:
        self.at = BEGIN

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


@dataclass
class Leadership:
    """A supervisor that leads and records, until `end`."""

    path: Path
    clock: SetClock
    leader: str = "one"
    noticed: Mapping[Host, ReclaimNotice] = field(default_factory=dict)
    ranks: Ranks = NO_RANKS

    def __post_init__(self) -> None:
        self.stays = StayBook(self.clock, lambda _job: self.noticed, self._measured)
        self.recorder = Recorder(
            url=lambda: file_url(self.path),
            limits=RecordLimits(days=1e6, entries=MOST),
            history=JobHistory(self.clock.now()),
            book=LedgerBook(self.clock),
            stays=self.stays,
            noticed=lambda _job: self.noticed,
            machine=lambda _node: UNKNOWN_MACHINE,
            leader=self.leader,
            fault=Fault("record", self.clock),
            clock=self.clock,
            bulkhead=Bulkhead(self.clock),
        )

    def _measured(self, _job: SupervisedJob) -> MeasuredCosts:
        return MeasuredCosts(
            step_seconds=self.ranks.slowest_step,
            checkpoint_seconds=self.ranks.slowest_checkpoint,
            start_seconds=self.ranks.costs.start_seconds,
        )

    def hear(self, change: Change) -> None:
        self.stays.on_change(change)
        self.recorder.on_change(change)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[Recorder]:
        await self.recorder.once()
        yield self.recorder
        await self.recorder._in_thread(self.recorder._opened().close)
        self.recorder._thread.shutdown()

    async def kept(self, since: float = 0.0) -> JobCapacity:
        async with self.writing() as recorder:
            return await recorder.read_capacity(JOB, since, math.inf, MOST)


def play(case: GoodputCase, costs: GoodputCosts, leads: Callable[[float], Leadership]) -> Score:
    """Simulates a supervised job, and reports what is stored of it to whoever leads at an instant."""
    known: dict[Host, ReclaimNotice] = {}
    before: SupervisedJob | None = None
    decide = Decider.decide

    def telling(decider: Decider, rank_zero: Any, ranks: Ranks, members: Any, now: float) -> None:
        nonlocal before
        decide(decider, rank_zero, ranks, members, now)
        leader = leads(now)
        leader.clock.at, leader.ranks, leader.noticed = now, ranks, dict(decider.noticed)
        for host, notice in decider.noticed.items():
            if known.get(host) != notice:
                leader.hear(NoticeChanged(known.get(host), notice, now))
                known[host] = notice
        for host in known.keys() - decider.noticed.keys():
            stays = host in decider.job.observed.hosts
            ended = replace(known[host], state=NoticeState.WITHDRAWN if stays else NoticeState.GONE, ended_at=now)
            leader.hear(NoticeChanged(known.pop(host), ended, now))
        if decider.job != before:
            leader.hear(JobChanged(before, decider.job, now))
            before = decider.job

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decider, "decide", telling)
        score = supervised(case, costs, seed=1, delays=AT_ONCE)
    leads(BEGIN + case.schedule.seconds).clock.at = BEGIN + case.schedule.seconds
    return score
