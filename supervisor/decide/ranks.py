"""Defines the connected processes of a run, and their last statements about agreed steps."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

from supervisor.domain.agreement import Agreement, AnswerKind, Purpose, StepAnswer

_MAX_NAMES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """The last statement of one connected process.

    Attributes:
        process: Its name on the wire.
        rank: None is unknown.
        purposes: What it can agree to: the functions that it has called with a step.
        collective: Whether a save needs all ranks.
        world_size: The number of ranks as this process knows it.
        epoch: The highest epoch that it has heard of.
        step_seconds: The shortest time between two steps.
        start_seconds: How long it took from the start of the process to its first step.
        change_seconds: How long it took to enter its round in process, from one step to the next.
        checkpoint_seconds: How long its slowest recent checkpoint took.
        unread_seconds: For how long it has not asked whether to stop, as of its last answer.
        answer: Its last answer.
        acknowledged: The highest generation of a STOP because of which it has said that it saved or left.
    """

    process: str
    rank: int | None
    purposes: frozenset[Purpose] = frozenset()
    collective: bool = False
    world_size: int | None = None
    epoch: int = 0
    step_seconds: float | None = None
    start_seconds: float | None = None
    change_seconds: float | None = None
    checkpoint_seconds: float | None = None
    unread_seconds: float | None = None
    answer: StepAnswer | None = None
    acknowledged: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeCosts:
    """How long the slowest process of a job takes for what a change of hosts consists of; None is unknown.

    Attributes:
        checkpoint_seconds: To save a checkpoint, before a restart.
        start_seconds: From the start of a process to its first step.
        change_seconds: To enter another round in process, from one step to the next.
    """

    checkpoint_seconds: float | None = None
    start_seconds: float | None = None
    change_seconds: float | None = None


NO_COSTS = ChangeCosts()


@dataclass(frozen=True)
class Ranks:
    """All connected processes of a run, known only from their streams.

    After a restart they are unknown until they return.

    `left` are the ranks that have acknowledged the present STOP, connected or not. `known_costs` are those that earlier
    processes of the job have measured.
    """

    states: Sequence[RankState] = ()
    left: frozenset[int] = frozenset()
    known_costs: ChangeCosts = NO_COSTS

    @cached_property
    def costs(self) -> ChangeCosts:
        """What the slowest process measures, or what earlier processes have measured."""
        known, states = self.known_costs, self.states
        return ChangeCosts(
            checkpoint_seconds=_longest((each.checkpoint_seconds for each in states), known.checkpoint_seconds),
            start_seconds=_longest((each.start_seconds for each in states), known.start_seconds),
            change_seconds=_longest((each.change_seconds for each in states), known.change_seconds),
        )

    def agree_to(self, purpose: Purpose) -> bool:
        """Whether there are processes and each of them agrees to steps for this purpose."""
        return bool(self.states) and all(purpose in each.purposes for each in self.states)

    def opposed(self, purpose: Purpose) -> Sequence[RankState]:
        """The processes that do not agree to steps for this purpose."""
        return [each for each in self.states if purpose not in each.purposes]

    @property
    def collective(self) -> bool:
        """Whether a save needs all ranks."""
        return any(each.collective for each in self.states)

    @property
    def absent(self) -> Iterator[int]:
        """The ranks of the run that are not connected; at most rank 0 if the size of the run is unknown.

        They come one by one, as the size is a claim of a process, and nearly always the first one decides.
        """
        size = max((each.world_size or 1 for each in self.states), default=1)
        known = {each.rank for each in self.states if each.rank is not None}
        unnamed = sum(each.rank is None for each in self.states)
        # A process without a rank may be any of those that are missing.
        return islice((rank for rank in range(size) if rank not in known), unnamed, None)

    def silent(self, agreement: Agreement) -> Sequence[RankState]:
        """The connected processes that have not answered this agreement."""
        return [each for each in self.states if each.answer is None or not each.answer.is_to(agreement)]

    def answers(self, agreement: Agreement) -> Sequence[tuple[RankState, StepAnswer]]:
        """The answers to this agreement."""
        return [(each, each.answer) for each in self.states if each.answer is not None and each.answer.is_to(agreement)]

    def have_answered(self, agreement: Agreement) -> bool:
        """Whether every rank of the run has answered this agreement."""
        return bool(self.states) and not self.silent(agreement) and next(self.absent, None) is None

    def have_passed(self, agreement: Agreement) -> bool:
        """Whether a rank has gone on past the step of this agreement."""
        return any(answer.kind is AnswerKind.PASSED for _, answer in self.answers(agreement))

    def have_held(self, agreement: Agreement) -> bool:
        """Whether every rank of the run has saved, and waits outside any collective for the next round."""
        return self.have_answered(agreement) and all(
            answer.kind is AnswerKind.HELD for _, answer in self.answers(agreement)
        )

    def is_saving_alone(self, agreement: Agreement) -> bool:
        """Whether rank 0 has stopped at the step of this agreement, and saves alone."""
        answers = self.answers(agreement)
        return not self.collective and any(
            each.rank == 0 and answer.kind is AnswerKind.REACHED for each, answer in answers
        )

    def have_acknowledged(self, generation: int) -> bool:
        """Whether every rank has acknowledged the STOP of `generation`: it has saved or left."""
        return all(each.acknowledged >= generation for each in self.states) and all(
            rank in self.left for rank in self.absent
        )

    @property
    def unread_seconds(self) -> float | None:
        """The longest time for which a process has not asked whether to stop; None if no process knows."""
        return _longest(each.unread_seconds for each in self.states)

    @property
    def slowest_checkpoint(self) -> float | None:
        """The seconds that the slowest checkpoint of a process takes; None if no process of the job has known."""
        return self.costs.checkpoint_seconds

    @property
    def slowest_step(self) -> float | None:
        """The seconds that a step of the slowest process takes; None if no process knows."""
        return _longest(each.step_seconds for each in self.states)


NO_RANKS = Ranks()


def _longest(seconds: Iterable[float | None], otherwise: float | None = None) -> float | None:
    """Returns the longest of the times that are known."""
    return max((each for each in seconds if each is not None), default=otherwise)


@dataclass(frozen=True, slots=True)
class RankCounts:
    """How many processes of a run are connected, how many of them know their rank, and how many are rank 0."""

    processes: int = 0
    ranked: int = 0
    zeros: int = 0


def names(states: Sequence[RankState], absent: Sequence[int] = ()) -> str:
    """Names processes by rank, with the time for which each has not asked whether to stop."""
    named = []
    for each in states[:_MAX_NAMES]:
        name = f"process {each.process}" if each.rank is None else f"rank {each.rank}"
        is_late = each.unread_seconds is not None and each.unread_seconds >= 1
        named.append(f"{name} (flag not read for {each.unread_seconds:.0f} s)" if is_late else name)
    named += [f"rank {rank} (not connected)" for rank in absent[: _MAX_NAMES - len(named)]]
    others = len(states) + len(absent) - len(named)
    return ", ".join(named) + (f" and {others} others" if others else "")
