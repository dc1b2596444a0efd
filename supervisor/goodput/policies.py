"""The ways to handle reclaims that are compared."""

import math
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum

from supervisor.goodput.model import GoodputCase, GoodputCosts, Score, groups
from supervisor.goodput.restarting import Habits, restarting
from supervisor.goodput.schedule import ScheduledNotice
from supervisor.goodput.supervised import supervised

SUPERVISOR = "supervisor"
RESTARTED = "supervisor, by restarts"
WARM = "supervisor, by warm restarts"
IN_ROUNDS = "supervisor, torchrun in process"

WARM_SHARE = 0.15
"""The pause of a restart with workers that are forks of a template, by that with workers that are started: 0.09 to 0.17
in `tests/torchrun/test_torchrun_warm.py`."""

_SIGTERM, _EVERY_MINUTE, _EVERY_TEN = "SIGTERM, poll of 2 s", "checkpoints every 60 s", "checkpoints every 600 s"

HABITS: Mapping[str, Habits] = {
    _EVERY_MINUTE: Habits(checkpoint_every=60.0),
    _EVERY_TEN: Habits(checkpoint_every=600.0),
    "keep-alive of 15 s": Habits(checkpoint_every=60.0, detect=15.0),
    _SIGTERM: Habits(poll=2.0),
}


class OtherPolicy(StrEnum):
    """The ways to handle the reclaims of a job that are set beside what has happened."""

    SUPERVISOR = "this supervisor, simulated"
    SIGTERM = "a termination handler with SIGTERM"
    EVERY_MINUTE = "a checkpoint each minute, and restarts"
    EVERY_TEN_MINUTES = "a checkpoint every 10 minutes, and restarts"
    WAITING = "nothing but waiting"
    """It runs with all its workers or not at all, hears of no notice, saves nothing, and begins at the first step again
    once all are back."""
    ON_DEMAND = "all on demand"
    """Every wanted worker is always there."""


def simulated(policy: OtherPolicy, case: GoodputCase, costs: GoodputCosts, seed: int) -> Score:
    """Simulates a policy in a case, with the simulations of `scores`."""
    match policy:
        case OtherPolicy.SUPERVISOR:
            return supervised(case, costs if costs.in_process else with_restarts(costs), seed)
        case OtherPolicy.SIGTERM:
            return restarting(case, costs, _saving(HABITS[_SIGTERM], costs), seed)
        case OtherPolicy.EVERY_MINUTE:
            return restarting(case, costs, HABITS[_EVERY_MINUTE], seed)
        case OtherPolicy.EVERY_TEN_MINUTES:
            return restarting(case, costs, HABITS[_EVERY_TEN], seed)
        case OtherPolicy.WAITING:
            return restarting(replace(case, least=case.most), costs, Habits(), seed)
        case OtherPolicy.ON_DEMAND:
            return Score(useful=case.most * case.schedule.seconds / costs.step, steps_lost=0.0, restarts=0)


def scores(case: GoodputCase, costs: GoodputCosts, seed: int) -> Mapping[str, Score]:
    """What each policy achieves. The seed decides at which moment of an interval somebody polls."""
    habits = {name: _saving(habits, costs) for name, habits in HABITS.items()}
    return {
        **{name: restarting(case, costs, each, seed) for name, each in habits.items()},
        RESTARTED: supervised(case, with_restarts(costs), seed),
        WARM: supervised(case, with_warm_restarts(costs), seed),
        IN_ROUNDS: supervised(case, replace(costs, in_rounds=True), seed),
        SUPERVISOR: supervised(case, costs, seed),
    }


def _saving(habits: Habits, costs: GoodputCosts) -> Habits:
    """The same habits; who saves only when told also saves as often as such a job does without a notice."""
    return habits if habits.checkpoint_every is not None else replace(habits, checkpoint_every=costs.save_every)


def with_published_costs(case: GoodputCase, checkpoint: float, restart: float) -> GoodputCosts:
    """The costs of a large job, in seconds. If its notices are too short to save, it also saves at Young's interval."""
    costs = GoodputCosts(checkpoint=checkpoint, restart=restart)
    lead = max((step.lead for step in case.schedule.steps if isinstance(step, ScheduledNotice)), default=math.inf)
    if checkpoint < lead:
        return costs
    between = case.schedule.seconds / max(1, groups(case.schedule))
    return replace(costs, save_every=math.sqrt(2 * checkpoint * between))


def with_restarts(costs: GoodputCosts) -> GoodputCosts:
    """The costs of a job whose every change of hosts is a checkpoint and a restart of all processes."""
    return replace(costs, change=costs.checkpoint + costs.restart, in_process=False)


def with_warm_restarts(costs: GoodputCosts) -> GoodputCosts:
    """The costs of such a job whose workers start warm in all rounds of a run but the first."""
    return replace(costs, change=costs.checkpoint + WARM_SHARE * costs.restart, in_process=False)
