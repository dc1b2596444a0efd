"""The same capacity, once simulated and once with the real processes of `make replay`."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from simulator.cloud.process import ProcessEnded
from simulator.cloud.schedule import ScheduledNotice
from simulator.events import JobEvent, JobEventKind
from simulator.guarantees import observed_costs
from simulator.runner import PlayResult, ReplayScenario, play
from supervisor.goodput.model import GoodputCase, GoodputCosts, Score
from supervisor.goodput.supervised import supervised

RESTART_SECONDS = 2.5
"""From the order to start all processes to their first step, and for the agent of a new node to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A case with the costs that were measured in its real run, and both scores."""

    case: GoodputCase
    costs: GoodputCosts
    real: Score
    simulated: Score


async def compared(scenario: ReplayScenario, root: Path, seed: int) -> Compared:
    """Plays a scenario with real processes, and simulates it.

    Raises:
        ProcessEnded: The real job did not finish.
    """
    played = await play(scenario, root, Console(quiet=True))
    if played.broken is not None:
        raise ProcessEnded(played.broken)
    least, most = scenario.job.min_workers, scenario.job.max_workers
    case = GoodputCase(name=scenario.name, schedule=scenario.schedule, least=least, most=most)
    measured = observed_costs(played.events)
    costs = GoodputCosts(step=measured.step, checkpoint=measured.checkpoint, change=0.0, restart=RESTART_SECONDS)
    return Compared(case=case, costs=costs, real=_real(case, played), simulated=supervised(case, costs, seed))


def _real(case: GoodputCase, played: PlayResult) -> Score:
    begin = _begin(case, played.events)
    runs = {event.integer("run") for event in played.events if event.kind is JobEventKind.RUN_ENDED}
    return Score(
        useful=useful_steps(played.events, begin, begin + case.schedule.seconds),
        steps_lost=played.verdict.figures.steps_lost,
        restarts=len(runs) - 1,
    )


def _begin(case: GoodputCase, events: Iterable[JobEvent]) -> float:
    """When the schedule began, by its first notice."""
    shown = min(event.t for event in events if event.kind is JobEventKind.NOTICE_SHOWN)
    return shown - min(step.at for step in case.schedule.steps if isinstance(step, ScheduledNotice))


def useful_steps(events: Iterable[JobEvent], begin: float, end: float) -> int:
    """The worker-steps between two instants; of a repeated step, those of the last ring that made it."""
    rings: dict[int, dict[tuple[int, int], int]] = defaultdict(lambda: defaultdict(int))
    for event in events:
        if event.kind is JobEventKind.STEP_APPLIED and begin <= event.t < end:
            rings[event.integer("step")][event.integer("run"), event.integer("epoch")] += 1
    return sum(_last(workers) for workers in rings.values())


def _last(workers: Mapping[tuple[int, int], int]) -> int:
    return workers[max(workers)]
