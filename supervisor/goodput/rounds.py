"""The processes of a simulated job that torchrun runs.

For each round the elastic agents restart them, or those that remain enter it in process. Then each of them has the
whole state, as with DistributedDataParallel, and those that join start while the others train.
"""

import math
from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from supervisor.decide.situation import NO_MEMBERS, Member, Members
from supervisor.domain.agreement import Agreement, AnswerKind, Purpose, Round
from supervisor.domain.ids import Host
from supervisor.domain.job import Decision
from supervisor.domain.order import ProcessDirective
from supervisor.goodput.delays import Delays
from supervisor.goodput.model import GoodputCase, GoodputCosts
from supervisor.goodput.processes import ProcessesState, RingOfProcesses
from supervisor.goodput.timeline import CapacityTimeline


class RingOfMembers(RingOfProcesses):
    """The launcher keeps an agent on each listed host. Those of the present round train; the others wait."""

    def __init__(
        self, case: GoodputCase, costs: GoodputCosts, delays: Delays, line: CapacityTimeline, present: AbstractSet[Host]
    ) -> None:
        super().__init__(case, costs, delays, line, present)
        self._purpose = Purpose.REGROUP if costs.in_process else Purpose.RENDEZVOUS
        self.purposes = frozenset({Purpose.STOP, self._purpose})
        self._round = 0
        self._has_trained = False
        self._connected_at: dict[Host, float] = {}
        self._started_at: dict[Host, float] = {}
        """When the processes of a host that joins in process are ready."""

    @property
    def members(self) -> Members:
        if not self.is_running:
            return NO_MEMBERS
        return Members({host: self._member(host) for host in self._present & self._connected_at.keys()})

    def start(self, run: int, listed: AbstractSet[Host]) -> None:
        """Starts an agent on each host."""
        self._run, self._round, self._connected_at, self._started_at = run, 0, {}, {}
        self.acknowledgement, self._answer, self._acknowledged = None, None, 0
        self._enter(ProcessesState.STARTING)
        self.follow(listed)

    def follow(self, listed: AbstractSet[Host]) -> None:
        """Starts agents on new hosts. Those of hosts that are excluded stay until the hosts are gone."""
        for host in listed & self._present:
            self._connected_at.setdefault(host, self._line.now)

    def lose(self, host: Host) -> None:
        """A host is gone. The others of its round wait for the next one.

        They repeat the step that has failed or, if they are restarted, all since the last checkpoint. A run that ends
        goes on ending.
        """
        self._connected_at.pop(host, None)
        self._started_at.pop(host, None)
        if host in self.hosts and self.state is not ProcessesState.ENDING:
            self.lost += self.training.roll_back(1 if self._costs.in_process else math.inf)
            self.hosts -= {host}
            self._enter(ProcessesState.CHANGING if self._costs.in_process else ProcessesState.BROKEN)

    def hear(self, decision: Decision, directive: ProcessDirective) -> None:
        """Agents and ranks learn of a decision."""
        following, agreement = decision.round, directive.agreement
        if following is not None and following.run == self._run:
            self._prepare(following.starting)
        if following is not None and following.run == self._run and following.number > self._round:
            self._join(following)
        elif agreement is None or agreement.purpose is not self._purpose or not agreement.committed:
            super().hear(decision, directive)
        elif self.state is ProcessesState.TRAINING and not self._is_held_at(agreement):
            self._answer = self._answered(agreement, AnswerKind.COMMITTED)
            self._after_step(agreement.step, lambda: self._stand(agreement))

    def _prepare(self, starting: Iterable[Host]) -> None:
        """Agents start processes that join a later round."""
        for host in starting:
            if host in self._connected_at and host not in self._started_at:
                self._started_at[host] = self._line.now + self._costs.restart
                self._line.after(self._costs.restart, lambda: None)  # The job is planned again then.

    def _is_held_at(self, agreement: Agreement) -> bool:
        return self._answer is not None and self._answer.kind is AnswerKind.COMMITTED and self._answer.is_to(agreement)

    def _stand(self, agreement: Agreement) -> None:
        """All ranks stand at the agreed step. They save if that is how the next round gets its state."""
        if self._costs.in_process:
            self._enter(ProcessesState.HELD)
            self._answer = self._answered(agreement, AnswerKind.HELD)
        else:
            self._save_and_hold(agreement)

    def _save_and_hold(self, agreement: Agreement) -> None:
        self._answer = self._answered(agreement, AnswerKind.REACHED)
        self._enter(ProcessesState.SAVING)

        def hold() -> None:
            self.training.keep()
            self._enter(ProcessesState.HELD)
            self._checkpoint_seconds = self._costs.checkpoint
            self._answer = self._answered(agreement, AnswerKind.HELD)

        self._enter_after(self._costs.checkpoint, hold)

    def _join(self, following: Round) -> None:
        """The members of a round enter it, in process or by a restart. The very first start costs nothing."""
        is_first = not self.changes and not self._has_trained
        if following.in_process:
            state, seconds = ProcessesState.CHANGING, self._costs.change
            self._change_seconds = seconds
        else:
            # Without an agreed step nothing has been saved.
            self.lost += self.training.roll_back()
            state, seconds = ProcessesState.STARTING, self._seconds_to_start
            self.restarted_for = "stopped"
            if self._round:
                self.restarted_for = "growing" if self.hosts < {*following.hosts} else "leaving"
            self._start_seconds = seconds
        self.changes += bool(self._round)
        self._round, self._answer = following.number, None
        self.hosts = self._present & {*following.hosts}
        for host in self.hosts:
            self._started_at.pop(host, None)
        self._enter(state)
        self._enter_after(0.0 if is_first else seconds, lambda: self._enter(ProcessesState.TRAINING))
        self._has_trained = True

    @property
    def _seconds_to_start(self) -> float:
        """How long processes start: as usual in a run's first round, and as long as `costs` says in a later one."""
        if not self._round or self._costs.in_process:
            return self._costs.restart
        return self._costs.change - self._costs.checkpoint

    def _train_on(self) -> None:
        self._enter(ProcessesState.TRAINING)

    def _member(self, host: Host) -> Member:
        is_in, started_at = host in self.hosts, self._started_at.get(host)
        return Member(
            member=host,
            since=self._connected_at[host],
            processes=1,
            address=host,
            round=self._round if is_in else 0,
            waits=not is_in and started_at is None,
            failed=is_in and self.state is ProcessesState.BROKEN,
            ready=self._round if is_in and self.state is not ProcessesState.CHANGING else 0,
            started=started_at is not None and self._line.now >= started_at,
        )
