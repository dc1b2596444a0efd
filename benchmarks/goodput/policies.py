"""The ways to handle reclaims that are compared."""

from collections.abc import Mapping
from dataclasses import replace

from benchmarks.goodput.model import GoodputCase, GoodputCosts, Score
from benchmarks.goodput.restarting import Habits, restarting
from benchmarks.goodput.supervised import supervised

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
    return {
        **{name: restarting(case, costs, habits, seed) for name, habits in HABITS.items()},
        RESTARTED: supervised(case, with_restarts(costs), seed),
        WARM: supervised(case, with_warm_restarts(costs), seed),
        SUPERVISOR: supervised(case, costs, seed),
    }


def with_restarts(costs: GoodputCosts) -> GoodputCosts:
    """The costs of a job whose every change of hosts is a checkpoint and a restart of all processes."""
    return replace(costs, change=costs.checkpoint + costs.restart, in_process=False)


def with_warm_restarts(costs: GoodputCosts) -> GoodputCosts:
    """The costs of such a job whose workers start warm in all rounds of a run but the first."""
    return replace(costs, change=costs.checkpoint + WARM_SHARE * costs.restart, in_process=False)
