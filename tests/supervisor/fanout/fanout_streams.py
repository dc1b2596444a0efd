"""A fake stream, and the streams to the processes of one job without a supervisor around them."""

import json
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.decide.directives import JobDirectives
from supervisor.domain.ids import Host, JobName
from supervisor.domain.job import Decision, SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.domain.order import ProcessDirective, Worker
from supervisor.fanout.lines import LineResponse
from supervisor.fanout.processes import Processes
from tests.supervisor.decide.decide_builders import POLICY, T0, noticed, running_job, spec


class FakeStream(LineResponse):
    """A fake stream without a peer. It keeps the lines and the goodbye that it would send, and counts its turns."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.goodbye: str | None = None
        self.turns = 0

    def push(self, data: bytes) -> None:
        self.lines.append(json.loads(data))

    def heartbeat(self, _seconds: float) -> None:
        self.turns += 1

    def finish(self, reason: str) -> None:
        self.goodbye = reason


class JobStreams:
    """The real `Processes` of a job that runs on three hosts; the test itself changes the job and its notices."""

    def __init__(self, least: int = 3) -> None:
        self.job = running_job(spec(least, 3), 3)
        self.notices: dict[Host, ReclaimNotice] = {}
        self.now = T0
        self.rank_zero_looks: list[JobName] = []
        self.sent: list[Collection[ProcessDirective]] = []
        self.processes = Processes(
            self._directives, lambda: self.now, Bulkhead(Clock()), self.rank_zero_looks.append, self._on_sent
        )

    def _directives(self, _name: JobName) -> JobDirectives:
        return JobDirectives.of(self.job, self.notices, POLICY)

    def _on_sent(self, _name: JobName, directives: Collection[ProcessDirective]) -> None:
        self.sent.append(list(directives))

    def worker(self, number: int, rank: int | None) -> Worker:
        """The process on n`number`."""
        return Worker(f"process-on-n{number}", self.job.id, self.job.decision.run or 1, Host(f"n{number}"), rank)

    def connect(self, number: int, rank: int | None) -> FakeStream:
        stream = FakeStream()
        assert self.processes.attach(self.worker(number, rank), stream)
        return stream

    def ranks(self) -> list[FakeStream]:
        """Connects rank 0 on n1, rank 1 on n2 and rank 2 on n3."""
        return [self.connect(rank + 1, rank) for rank in range(3)]

    def decides(self, **changes: Any) -> SupervisedJob:
        """A changed decision is sent, of the next generation."""
        decision: Decision = replace(self.job.decision, generation=self.job.decision.generation + 1, **changes)
        self.job = replace(self.job, decision=decision)
        self.processes.refresh([self.job.name])
        return self.job

    def notes(self, *notices: ReclaimNotice) -> None:
        """These notices are the present ones, and are shown."""
        self.notices = noticed(*notices)
        self.processes.refresh([self.job.name])
