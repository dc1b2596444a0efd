"""Simulated jobs of torchrun under losses that come while they do something else."""

import pytest

from supervisor.goodput.model import GoodputCase, GoodputCosts
from supervisor.goodput.policies import with_restarts
from supervisor.goodput.schedule import AddNode, KillNode, Node, ReclaimSchedule, ScheduledNotice, Step
from supervisor.goodput.supervised import supervised

_COSTS = GoodputCosts(step=1.0, checkpoint=2.0, restart=10.0, in_rounds=True)
_NODES = tuple(Node(f"n{number}") for number in range(4))
_SECONDS = 7200.0


@pytest.mark.parametrize("in_process", [True, False])
def test_a_job_goes_on_whenever_a_second_host_is_lost(*, in_process: bool) -> None:
    """The first one has had a notice, for which the job stops; both have a successor after 10 minutes."""
    costs = _COSTS if in_process else with_restarts(_COSTS)
    for tenths in range(0, 200, 2):
        score = supervised(_case(tenths / 10), costs, seed=1)
        assert score.useful > 0.7 * len(_NODES) * _SECONDS, f"lost {tenths / 10:g} s after the notice"


def _case(after: float) -> GoodputCase:
    noticed, other = _NODES[:2]
    steps: list[Step] = [
        ScheduledNotice(1000.0, noticed, 60.0, ""),
        KillNode(1000.0 + after, other),
        KillNode(1060.0, noticed),
        AddNode(1600.0, Node("n4")),
        AddNode(1600.0, Node("n5")),
    ]
    return GoodputCase(name="", schedule=ReclaimSchedule(_NODES, tuple(steps), _SECONDS), least=4, most=4)
