"""Jobs without a supervisor: every change of their hosts is a restart of all processes from the last checkpoint."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from supervisor.goodput.model import GoodputCase, GoodputCosts, Score
from supervisor.goodput.schedule import AddNode, KillNode, Node, ScheduledNotice, Step, Withdraw
from supervisor.goodput.timeline import CapacityTimeline
from supervisor.goodput.training import GoodputTraining


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What such a job knows and when. All in seconds.

    Attributes:
        checkpoint_every: Training between two checkpoints; None if it saves only when it was told.
        detect: From the loss of a host to the restart that it causes.
        poll: Between two questions for a notice, on each node; SIGTERM follows it. None if nobody asks.
    """

    checkpoint_every: float | None = None
    detect: float = 0.0
    poll: float | None = None


_ROUNDING = 1e-6


class _RestartingState(Enum):
    WAITING = auto()
    STARTING = auto()
    TRAINING = auto()
    SAVING = auto()
    BROKEN = auto()


def restarting(case: GoodputCase, costs: GoodputCosts, habits: Habits, seed: int) -> Score:
    """Simulates such a job."""
    job = _RestartingJob(case, costs, habits, seed)
    return job.run()


class _RestartingJob:
    def __init__(self, case: GoodputCase, costs: GoodputCosts, habits: Habits, seed: int) -> None:
        self._case, self._costs, self._habits = case, costs, habits
        self._chance = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._line = CapacityTimeline()
        self._training = GoodputTraining(costs.step)
        self._present: set[Node] = set(case.schedule.present)
        self._told: set[Node] = set()
        self._ring: frozenset[Node] = frozenset()
        self._state = _RestartingState.WAITING
        self._entered = 0
        self._starts = 0
        self._joining = _Joining()

    def run(self) -> Score:
        for step in self._case.schedule.steps:
            self._line.after(step.at, _call(self._happens, step))
        self._line.after(0.0, self._settle)
        self._line.run(self._case.schedule.seconds, self._advance, self._settle)
        return Score(
            useful=self._training.useful,
            steps_lost=self._training.steps_lost,
            restarts=max(0, self._starts - 1),
        )

    def _advance(self) -> None:
        self._training.advance(self._line.now)
        self._joining.advance(self._line.now)

    def _happens(self, step: Step) -> None:
        match step:
            case AddNode(node=node):
                self._present.add(node)
            case ScheduledNotice(node=node) if self._habits.poll is not None:
                self._line.after(self._chance.uniform(0.0, self._habits.poll), _call(self._tell, node))
            case KillNode(node=node):
                self._present.discard(node)
                self._told.discard(node)
            case Withdraw(node=node) if self._habits.poll is not None:
                self._line.after(self._chance.uniform(0.0, self._habits.poll), _call(self._told.discard, node))
            case _:
                pass

    def _tell(self, node: Node) -> None:
        if node in self._present:
            self._told.add(node)

    def _settle(self) -> None:
        """Does what follows from the present hosts."""
        usable = self._present - self._told
        spare = min(len(usable), self._case.most) - len(self._ring)
        self._joining.nodes = max(0, spare) if self._state is _RestartingState.TRAINING else 0
        match self._state:
            case _RestartingState.WAITING if len(usable) >= self._case.least:
                self._start()
            case _RestartingState.STARTING | _RestartingState.TRAINING | _RestartingState.SAVING if (
                self._ring - self._present
            ):
                self._break()
            case _RestartingState.STARTING if self._ring & self._told:
                self._start()
            case _RestartingState.TRAINING if self._ring & self._told:
                self._save()
            case _RestartingState.TRAINING if self._joining.nodes and self._habits.checkpoint_every is None:
                due = self._joining.due(self._line.now, self._cost_of_restart)
                self._enter_at(due, self._join)
            case _:
                pass

    @property
    def _cost_of_restart(self) -> float:
        return len(self._ring) * self._costs.restart

    def _enter(self, state: _RestartingState) -> None:
        self._training.workers = len(self._ring) if state is _RestartingState.TRAINING else 0
        self._state = state
        self._entered += 1

    def _enter_at(self, instant: float, do: Callable[[], None]) -> None:
        """Calls `do` at an instant unless the job is in another state by then."""
        entered = self._entered
        self._line.at(instant, lambda: do() if self._entered == entered else None)

    def _start(self) -> None:
        usable = sorted(self._present - self._told)
        if len(usable) < self._case.least:
            self._ring = frozenset()
            self._enter(_RestartingState.WAITING)
            return
        self._ring = frozenset(usable[: self._case.most])
        self._enter(_RestartingState.STARTING)
        self._starts += 1
        # The first start is the same for all, so it costs nothing.
        self._enter_at(self._line.now + (self._costs.restart if self._starts > 1 else 0.0), self._train)

    def _train(self) -> None:
        self._joining = _Joining(self._line.now)
        self._train_on()

    def _train_on(self) -> None:
        self._enter(_RestartingState.TRAINING)
        if self._habits.checkpoint_every is not None:
            self._enter_at(self._line.now + self._habits.checkpoint_every, self._save)

    def _break(self) -> None:
        self._enter(_RestartingState.BROKEN)
        self._training.roll_back()
        self._enter_at(self._line.now + self._habits.detect, self._start)

    def _save(self) -> None:
        self._enter(_RestartingState.SAVING)
        self._enter_at(self._line.now + self._costs.checkpoint, self._saved)

    def _saved(self) -> None:
        self._training.keep()
        if self._ring & self._told or self._joining.is_due(self._cost_of_restart):
            self._start()
        else:
            self._train_on()

    def _join(self) -> None:
        if self._joining.is_due(self._cost_of_restart):
            self._save()


class _Joining:
    """How long nodes have waited to join since the last restart, in node-seconds.

    A restart for them is due when they have waited as long as it costs the others: who does not know when the next
    restart comes anyway cannot promise to do better than this rule.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.nodes = 0
        self.idle = 0.0
        self._at = now

    def advance(self, now: float) -> None:
        self.idle += self.nodes * (now - self._at)
        self._at = now

    def due(self, now: float, cost: float) -> float:
        return now + max(0.0, cost - self.idle) / self.nodes

    def is_due(self, cost: float) -> bool:
        return self.idle >= cost - _ROUNDING


def _call(do: Callable[..., None], *arguments: object) -> Callable[[], None]:
    return lambda: do(*arguments)
