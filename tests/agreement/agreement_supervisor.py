"""A supervisor of one simulated job. Decisions, messages and stored answers are real; there are no sockets and no loop.

It remembers only what is stored. One that was killed, or that lost its lead, can store nothing more.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from supervisor.decide.directives import JobDirectives
from supervisor.decide.plan import Plan, plan
from supervisor.decide.policy import Policy
from supervisor.decide.registration import acknowledge
from supervisor.decide.situation import JobFacts, RankZero
from supervisor.domain.ids import Host
from supervisor.domain.job import Acknowledgement, AcknowledgementKind, Decision, SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.domain.order import ProcessDirective, Worker
from supervisor.fanout.processes import message
from supervisor.fanout.ranks import RankStates
from supervisor.ingest.processes import PostedProcessHello, PostedProcessReport, PostedReportKind
from tests.agreement.agreement_network import DelayedStream, Network

_NEVER = float("inf")


@dataclass(slots=True)
class DecisionStore:
    """What is stored. A decision is stored only if nobody else has decided meanwhile."""

    job: SupervisedJob
    on_decided: Callable[[Decision, Decision], None]

    def decide(self, before: Decision, after: Decision) -> bool:
        if self.job.decision != before:
            return False
        self.on_decided(before, after)
        self.job = replace(self.job, decision=after)
        return True


@dataclass(slots=True)
class Notices:
    """The hosts that will be reclaimed, and those with a hint."""

    acted_on: dict[Host, ReclaimNotice]
    ahead: dict[Host, list[ReclaimNotice]]


@dataclass(slots=True)
class _Connection:
    worker: Worker
    stream: DelayedStream
    sent: ProcessDirective | None = None


class Supervisor:
    def __init__(self, store: DecisionStore, notices: Notices, network: Network, policy: Policy) -> None:
        self.is_alive = True
        self._store = store
        self._notices = notices
        self._network = network
        self._policy = policy
        self._since = self._now
        self._connections: dict[str, _Connection] = {}
        self._rank_zero = RankZero(connected=False, since=self._now)
        self._ranks = RankStates(
            lambda _: [each.worker for each in self._connections.values()],
            lambda _: self._store.job.decision.agreement,
            lambda _: self.think(),
        )
        self._is_writing = False
        self._wakes_at = _NEVER

    def kill(self) -> None:
        """Ends it at once."""
        self.is_alive = False
        for connection in list(self._connections.values()):
            connection.stream.cut()

    # What it is told.

    def attach(self, fields: Mapping[str, Any], stream: DelayedStream) -> None:
        """A process opens a stream."""
        hello = msgspec.convert(fields, PostedProcessHello)
        worker = self._worker(hello)
        connection = self._connections[hello.process] = _Connection(worker, stream)
        stream.on_detached = lambda: self._detach(connection)
        self._ranks.put_statement(worker, hello.statement(hello.agreement))
        self._send(connection)
        self.think()

    def report(self, fields: Mapping[str, Any]) -> None:
        """A process reports something."""
        sent = msgspec.convert(fields, PostedProcessReport)
        worker = self._worker(sent)
        self._ranks.put_statement(worker, sent.statement())
        answered = sent.answered(self._now)
        if answered is not None:
            self._ranks.answered(worker, *answered)
        if sent.kind in (PostedReportKind.SAVED, PostedReportKind.LEFT) and sent.generation is not None:
            self._acknowledge(worker, sent, sent.generation)
        self.think()

    def _worker(self, said: PostedProcessHello | PostedProcessReport) -> Worker:
        return Worker(said.process, self._store.job.id, 1, Host(said.host), said.rank)

    def _detach(self, connection: _Connection) -> None:
        if self._connections.get(connection.worker.process) is connection:
            del self._connections[connection.worker.process]
            self.think()

    def _acknowledge(self, worker: Worker, sent: PostedProcessReport, generation: int) -> None:
        kind = AcknowledgementKind(sent.kind)
        answer = Acknowledgement(run=1, generation=generation, kind=kind, step=sent.step, at=self._now)
        changed = acknowledge(self._store.job, worker, answer)
        assert changed is not None
        self._store.job = changed
        decision = changed.decision
        stop = None if decision.agreed_stop is None else decision.stop
        if stop is not None and stop.generation <= generation <= decision.generation:
            self._ranks.acknowledged(worker, stop.generation)

    # What it decides.

    def think(self) -> None:
        """Plans, and stores what has changed before anybody is told."""
        if self._is_writing or not self.is_alive:
            return
        job = self._store.job
        planned = plan(job, self._facts(job), self._now, self._policy)
        if planned.decision == job.decision:
            self._obey(planned)
            self._wake_at(planned.wake_at)
            return
        self._is_writing = True
        # A store is as slow as the network to it.
        self._network.timeline.after(self._network.delay(), lambda: self._write(job.decision, planned))

    def _write(self, before: Decision, planned: Plan) -> None:
        self._is_writing = False
        if not self.is_alive:
            return
        if self._store.decide(before, planned.decision):
            for connection in list(self._connections.values()):
                self._send(connection)
        self.think()

    def _wake_at(self, at: float | None) -> None:
        if at is None or at >= self._wakes_at > self._now:
            return
        self._wakes_at = at

        def wake() -> None:
            self._wakes_at = _NEVER
            self.think()

        self._network.timeline.after(max(0.0, at - self._now) + 1e-6, wake)

    def _obey(self, planned: Plan) -> None:
        """The launcher has its orders in place at once, and ends the run of a suspended job."""
        if not planned.actions:
            return
        observed, decision = self._store.job.observed, planned.decision
        is_running = observed.running and decision.waiting_since is None
        changed = replace(observed, applied=decision.generation, running=is_running)
        if changed != observed:
            self._store.job = replace(self._store.job, observed=changed)
            self.think()

    def _facts(self, job: SupervisedJob) -> JobFacts:
        is_connected = any(each.worker.rank == 0 for each in self._connections.values())
        if is_connected != self._rank_zero.connected:
            self._rank_zero = RankZero(connected=is_connected, since=self._now)
        return JobFacts(
            notices=self._notices.acted_on,
            ahead=self._notices.ahead,
            rank_zero=self._rank_zero,
            ranks=self._ranks.of(job.id, 1),
            since=self._since,
        )

    def _send(self, connection: _Connection) -> None:
        directives = JobDirectives.of(self._store.job, self._notices.acted_on, self._policy)
        directive = directives.directive(connection.worker)
        if directive != connection.sent:
            connection.sent = directive
            connection.stream.send(message(directive, connection.worker.job.name, self._now))

    @property
    def _now(self) -> float:
        return self._network.timeline.now
