"""The processes of a simulated job that torchrun runs: an elastic agent on each host restarts them for each round."""

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

    purposes = frozenset({Purpose.STOP, Purpose.RENDEZVOUS})

    def __init__(
        self, case: GoodputCase, costs: GoodputCosts, delays: Delays, line: CapacityTimeline, present: AbstractSet[Host]
    ) -> None:
        super().__init__(case, costs, delays, line, present)
        self._round = 0
        self._has_trained = False
        self._connected_at: dict[Host, float] = {}

    @property
    def members(self) -> Members:
        if not self.is_running:
            return NO_MEMBERS
        return Members({host: self._member(host) for host in self._present & self._connected_at.keys()})

    def start(self, run: int, listed: AbstractSet[Host]) -> None:
        """Starts an agent on each host."""
        self._run, self._round, self._connected_at = run, 0, {}
        self.acknowledgement, self._answer, self._acknowledged = None, None, 0
        self._enter(ProcessesState.STARTING)
        self.follow(listed)

    def follow(self, listed: AbstractSet[Host]) -> None:
        """Starts agents on new hosts. Those of hosts that are excluded stay until the hosts are gone."""
        for host in listed & self._present:
            self._connected_at.setdefault(host, self._line.now)

    def lose(self, host: Host) -> None:
        """A host is gone. The others of its round fail with it, and return to the last checkpoint."""
        self._connected_at.pop(host, None)
        if host in self.hosts:
            self.lost += self.training.roll_back()
            self.hosts -= {host}
            self._enter(ProcessesState.BROKEN)

    def hear(self, decision: Decision, directive: ProcessDirective) -> None:
        """Agents and ranks learn of a decision."""
        following, agreement = decision.round, directive.agreement
        if following is not None and following.run == self._run and following.number > self._round:
            self._join(following)
        elif agreement is None or agreement.purpose is not Purpose.RENDEZVOUS or not agreement.committed:
            super().hear(decision, directive)
        elif self.state is ProcessesState.TRAINING and not self._is_held_at(agreement):
            self._answer = self._answered(agreement, AnswerKind.COMMITTED)
            self._after_step(agreement.step, lambda: self._save_and_hold(agreement))

    def _is_held_at(self, agreement: Agreement) -> bool:
        return self._answer is not None and self._answer.kind is AnswerKind.COMMITTED and self._answer.is_to(agreement)

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
        """The agents of a round start their processes. The very first start costs nothing.

        Those of a run's first round start as usual. The later ones may start warm: a change costs what `costs` says.
        """
        is_first = not self.changes and not self._has_trained
        # Without an agreed step nothing has been saved.
        self.lost += self.training.roll_back()
        seconds = self._costs.change - self._costs.checkpoint if self._round else self._costs.restart
        self.changes += bool(self._round)
        self.restarted_for = "stopped"
        if self._round:
            self.restarted_for = "growing" if self.hosts < {*following.hosts} else "leaving"
        self._round, self._answer = following.number, None
        self.hosts = self._present & {*following.hosts}
        self._enter(ProcessesState.STARTING)
        self._start_seconds = seconds
        self._enter_after(0.0 if is_first else seconds, lambda: self._enter(ProcessesState.TRAINING))
        self._has_trained = True

    def _train_on(self) -> None:
        self._enter(ProcessesState.TRAINING)

    def _member(self, host: Host) -> Member:
        is_in = host in self.hosts
        return Member(
            member=host,
            since=self._connected_at[host],
            processes=1,
            address=host,
            round=self._round if is_in else 0,
            waits=not is_in,
            failed=is_in and self.state is ProcessesState.BROKEN,
        )
