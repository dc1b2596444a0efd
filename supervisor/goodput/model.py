"""What a simulation is about: the capacity, the job, the costs of its training and what came out."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from supervisor.goodput.schedule import AddNode, KillNode, ReclaimSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputCosts:
    """The durations of a job's training, in seconds; no worker finishes a step during the last three.

    Attributes:
        step: A step, whatever the number of workers: each worker brings its own share of the batch.
        checkpoint: Saving a checkpoint.
        change: From the last step with some hosts to the first one with others, in the same processes.
        restart: From a start of all processes to their first step, from the last checkpoint.
        in_process: Whether the processes survive a change.
        in_rounds: Whether hosts then change in rounds of torchrun, in which some may join while others leave, and after
            a start of their own. Otherwise they change as with elastic Horovod. By restarts there are always rounds.
        save_every: Training between two checkpoints that a job saves without a notice; None if it saves none.
    """

    step: float = 1.0
    checkpoint: float = 5.0
    change: float = 2.0
    restart: float = 30.0
    in_process: bool = True
    in_rounds: bool = False
    save_every: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputCase:
    """Capacity over time, and the job that uses it: `least` to `most` nodes with one worker each."""

    name: str
    schedule: ReclaimSchedule
    least: int
    most: int

    def possible(self, nodes: int) -> int:
        """How many of so many nodes can train: none below the job's minimum."""
        return min(nodes, self.most) if nodes >= self.least else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unused:
    """The worker-steps that were possible and that brought nothing, by reason.

    Attributes:
        announced: Hosts with a notice that the job had left already.
        changing: The hosts of the job changed in process, or one was lost.
        leaving: The job saved and restarted because hosts left it; others may have joined with the same restart.
        growing: The job saved and restarted only because hosts joined it.
        saving: The job saved without a notice.
        stopped: The job stopped for want of hosts, waited or started again.
        joining: Hosts that the job had not taken in yet.
        lost: Steps that were repeated.
    """

    announced: float = 0.0
    changing: float = 0.0
    leaving: float = 0.0
    growing: float = 0.0
    saving: float = 0.0
    stopped: float = 0.0
    joining: float = 0.0
    lost: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """What a job achieved.

    Attributes:
        useful: Finished worker-steps that were not repeated: the steps, each times the workers that made it.
        steps_lost: Steps that were repeated.
        restarts: Starts of all processes after the first one.
        unused: The other possible worker-steps, where they are known by reason.
    """

    useful: float
    steps_lost: float
    restarts: int
    unused: Unused = Unused()


def possible_steps(case: GoodputCase, costs: GoodputCosts) -> float:
    """The worker-steps that the capacity allows, if every node trains from its arrival until it is gone."""
    moments = [(0.0, len(case.schedule.present)), *_sizes(case.schedule)]
    spans = pairwise([*moments, (case.schedule.seconds, 0)])
    return sum(case.possible(nodes) * (until - at) for (at, nodes), (until, _) in spans) / costs.step


def groups(schedule: ReclaimSchedule) -> int:
    """The number of groups of nodes that are gone at the same instant."""
    return len({step.at for step in schedule.steps if isinstance(step, KillNode)})


def _sizes(schedule: ReclaimSchedule) -> Iterator[tuple[float, int]]:
    """The instants at which the number of nodes changes, and that number afterwards."""
    changes: Counter[float] = Counter()
    for step in schedule.steps:
        changes[step.at] += isinstance(step, AddNode) - isinstance(step, KillNode)
    nodes = len(schedule.present)
    for at in sorted(changes):
        nodes += changes[at]
        yield at, nodes
