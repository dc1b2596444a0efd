"""The ways to handle reclaims that are compared."""

import math
from collections.abc import Mapping
from dataclasses import replace

from supervisor.goodput.model import GoodputCase, GoodputCosts, Score, groups
from supervisor.goodput.restarting import Habits, restarting
from supervisor.goodput.schedule import ScheduledNotice
from supervisor.goodput.supervised import supervised

SUPERVISOR = "supervisor"
RESTARTED = "supervisor, by restarts"
WARM = "supervisor, by warm restarts"

WARM_SHARE = 0.15
"""The pause of a restart with workers that are forks of a template, by that with workers that are started: 0.09 to 0.17
in `tests/torchrun/test_torchrun_warm.py`."""

HABITS: Mapping[str, Habits] = {
    "checkpoints every 60 s": Habits(checkpoint_every=60.0),
    "checkpoints every 600 s": Habits(checkpoint_every=600.0),
    "keep-alive of 15 s": Habits(checkpoint_every=60.0, detect=15.0),
    "SIGTERM, poll of 2 s": Habits(poll=2.0),
}


def scores(case: GoodputCase, costs: GoodputCosts, seed: int) -> Mapping[str, Score]:
    """What each policy achieves. The seed decides at which moment of an interval somebody polls."""
    habits = {name: _saving(habits, costs) for name, habits in HABITS.items()}
    return {
        **{name: restarting(case, costs, each, seed) for name, each in habits.items()},
        RESTARTED: supervised(case, with_restarts(costs), seed),
        WARM: supervised(case, with_warm_restarts(costs), seed),
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
