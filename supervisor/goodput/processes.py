"""The processes of a simulated job that a supervisor steers.

They stand for a script that calls `should_stop(step)` under an elastic launcher. All ranks are as one, because they are
always at the same step: a ring of hosts that trains, changes, or saves and is held.
"""

import math
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from enum import Enum, auto

from supervisor.decide.ranks import NO_RANKS, Ranks, RankState
from supervisor.decide.situation import NO_MEMBERS, Members, RankZero
from supervisor.domain.agreement import Agreement, AnswerKind, Purpose, StepAnswer
from supervisor.domain.ids import Host
from supervisor.domain.job import Acknowledgement, AcknowledgementKind, Decision
from supervisor.domain.order import ProcessDirective, ProcessDirectiveKind
from supervisor.goodput.delays import Delays
from supervisor.goodput.model import GoodputCase, GoodputCosts
from supervisor.goodput.timeline import CapacityTimeline
from supervisor.goodput.training import GoodputTraining

COMMIT_STEPS = 10
"""How often the processes keep their state in memory. Those that remain return to it if a host of the ring is lost."""


_ROUNDING = 1e-6


class ProcessesState(Enum):
    DOWN = auto()
    STARTING = auto()
    TRAINING = auto()
    CHANGING = auto()
    CHECKPOINTING = auto()
    """They save as they do without a notice, and then train on."""
    SAVING = auto()
    HELD = auto()
    BROKEN = auto()
    """They have failed with one of them, and their agents wait for another round."""
    ENDING = auto()


_CONNECTED = (
    ProcessesState.TRAINING,
    ProcessesState.CHANGING,
    ProcessesState.CHECKPOINTING,
    ProcessesState.SAVING,
    ProcessesState.HELD,
)


class RingOfProcesses:
    """The processes of one run after another. `present` are the hosts that exist, which the simulation changes."""

    def __init__(
        self, case: GoodputCase, costs: GoodputCosts, delays: Delays, line: CapacityTimeline, present: AbstractSet[Host]
    ) -> None:
        self._least, self._costs, self._delays = case.least, costs, delays
        self._line, self._present = line, present
        self.purposes = frozenset({Purpose.STOP})
        self.training = GoodputTraining(costs.step)
        self.state = ProcessesState.DOWN
        self.hosts: AbstractSet[Host] = frozenset()
        self.changes = 0
        self.lost = 0.0
        self.acknowledgement: Acknowledgement | None = None
        self.restarted_for = "stopped"
        """Why the processes were started last: a field of `Unused`."""
        self._run = 0
        self._start_seconds = costs.restart
        self._listed: AbstractSet[Host] = frozenset()
        self._connection_since = 0.0
        self._entered = 0
        self._heard: tuple[int, int] | None = None
        self._answer: StepAnswer | None = None
        self._acknowledged = 0
        self._checkpoint_seconds: float | None = None
        self._change_seconds: float | None = None

    # What the launcher does.

    @property
    def is_running(self) -> bool:
        return self.state is not ProcessesState.DOWN

    def start(self, run: int, listed: AbstractSet[Host]) -> None:
        """Starts all processes. The first start is the same for all policies, so it costs nothing."""
        seconds = self._costs.restart if self._run else 0.0
        self._run, self._listed = run, listed
        self.acknowledgement, self._answer, self._acknowledged = None, None, 0
        self._enter(ProcessesState.STARTING)
        self._enter_after(seconds, self._form)

    def follow(self, listed: AbstractSet[Host]) -> None:
        """Changes the ring if the launcher lists other hosts."""
        self._listed = listed
        if self.state is ProcessesState.TRAINING and self._listed & self._present != self.hosts:
            self._change()

    def end(self) -> None:
        """Ends all processes."""
        if self.state not in (ProcessesState.DOWN, ProcessesState.ENDING):
            self._enter(ProcessesState.ENDING)
            self._enter_after(self._delays.end, self._fail)

    def lose(self, host: Host) -> None:
        """A host is gone, with its process."""
        if host not in self.hosts:
            return
        if self.state in (ProcessesState.TRAINING, ProcessesState.CHANGING, ProcessesState.CHECKPOINTING):
            self.lost += self.training.roll_back(COMMIT_STEPS)
            self._change()
        elif self.state is ProcessesState.SAVING:
            self._fail()

    # What the supervisor learns and says.

    @property
    def rank_zero(self) -> RankZero:
        return RankZero(self.state in _CONNECTED, self._connection_since)

    @property
    def members(self) -> Members:
        return NO_MEMBERS

    @property
    def ranks(self) -> Ranks:
        """One rank that stands for all."""
        if self.state not in _CONNECTED:
            return NO_RANKS
        rank = RankState(
            process="all",
            rank=0,
            purposes=self.purposes,
            world_size=1,
            step_seconds=self._costs.step,
            start_seconds=self._start_seconds,
            change_seconds=self._change_seconds,
            checkpoint_seconds=self._checkpoint_seconds,
            answer=self._answer,
            acknowledged=self._acknowledged,
        )
        return Ranks((rank,))

    def hear(self, decision: Decision, directive: ProcessDirective) -> None:
        """All ranks learn of a decision and rank 0's directive."""
        heard = decision.generation, self._entered
        if self.state not in _CONNECTED or heard == self._heard:
            return
        self._heard = heard
        agreement = directive.agreement
        if agreement is not None and not agreement.committed:
            self._line.after(2 * self._delays.wire, lambda: self._say(agreement))
        if directive.kind is ProcessDirectiveKind.STOP and self.state is ProcessesState.TRAINING:
            self._stop_at(decision.agreed_stop, directive.generation)

    def _say(self, agreement: Agreement) -> None:
        if self.state not in _CONNECTED or agreement.run != self._run:
            return
        is_ahead = agreement.step is not None and self._finished_steps < agreement.step
        self._answer = self._answered(agreement, AnswerKind.ACCEPTED if is_ahead else AnswerKind.DECLINED)

    def _answered(self, agreement: Agreement, kind: AnswerKind) -> StepAnswer:
        step = self._finished_steps
        return StepAnswer(epoch=agreement.epoch, at_step=agreement.step, kind=kind, step=step, at=self._line.now)

    @property
    def _finished_steps(self) -> int:
        # Steps are counted by time: the last one may lack a rounding error.
        return math.floor(self.training.steps + _ROUNDING)

    def _stop_at(self, agreed: Agreement | None, generation: int) -> None:
        self._after_step(None if agreed is None else agreed.step, lambda: self._save(generation))

    def _after_step(self, step: int | None, do: Callable[[], None]) -> None:
        """Calls `do` after that step, or after the present one."""
        steps = self.training.steps
        last = math.ceil(steps) if step is None else step
        self._enter_after(max(self._delays.wire, (last - steps) * self._costs.step), do)

    # What follows.

    def _change(self) -> None:
        """The ring changes. Hosts that leave it are free to go at once."""
        self.changes += 1
        self.hosts = self._listed & self._present
        self._enter(ProcessesState.CHANGING)
        self._enter_after(self._costs.change, self._form)

    def _form(self) -> None:
        self.hosts = self._listed & self._present
        self._enter(ProcessesState.TRAINING)

    def _save(self, generation: int) -> None:
        self._enter(ProcessesState.SAVING)
        self._enter_after(self._costs.checkpoint, lambda: self._saved(generation))

    def _saved(self, generation: int) -> None:
        self.training.keep()
        self._enter(ProcessesState.HELD)
        self._checkpoint_seconds, self._acknowledged = self._costs.checkpoint, generation
        self.acknowledgement = Acknowledgement(
            run=self._run,
            generation=generation,
            kind=AcknowledgementKind.SAVED,
            step=self._finished_steps,
            at=self._line.now,
        )

    def _fail(self) -> None:
        """No process is left, so the next run continues from the last checkpoint."""
        self.lost += self.training.roll_back()
        self.hosts = frozenset()
        self._enter(ProcessesState.DOWN)

    def _enter(self, state: ProcessesState) -> None:
        trains = state is ProcessesState.TRAINING and len(self.hosts) >= self._least
        self.training.workers = len(self.hosts) if trains else 0
        if (state in _CONNECTED) != (self.state in _CONNECTED):
            self._connection_since = self._line.now
        self.state = state
        self._entered += 1
        if state is ProcessesState.TRAINING and self._costs.save_every is not None:
            due = self._costs.save_every - self.training.unsaved_steps * self._costs.step
            self._enter_after(max(0.0, due), self._checkpoint)

    def _checkpoint(self) -> None:
        self._enter(ProcessesState.CHECKPOINTING)

        def train_on() -> None:
            self.training.keep()
            self._checkpoint_seconds = self._costs.checkpoint
            self._train_on()

        self._enter_after(self._costs.checkpoint, train_on)

    def _train_on(self) -> None:
        """Trains after a checkpoint, with other hosts if the launcher lists others meanwhile."""
        self._enter(ProcessesState.TRAINING)
        self.follow(self._listed)

    def _enter_after(self, seconds: float, do: Callable[[], None]) -> None:
        """Calls `do` after a time unless the processes are in another state by then."""
        entered = self._entered
        self._line.after(seconds, lambda: do() if self._entered == entered else None)
