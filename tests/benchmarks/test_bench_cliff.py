import pytest

from benchmarks.goodput.cliff import at_once, just_in_time, slack
from supervisor.goodput.model import GoodputCosts

_SEEDS = range(3)


@pytest.mark.parametrize(
    ("lead", "step", "checkpoint"), [(20.0, 10.0, 1.0), (120.0, 30.0, 60.0), (30.0, 10.0, 10.0), (5.0, 2.0, 1.0)]
)
def test_a_notice_that_leaves_two_seconds_beyond_a_step_and_a_checkpoint_loses_nothing(
    lead: float, step: float, checkpoint: float
) -> None:
    costs = GoodputCosts(step=step, checkpoint=checkpoint)
    assert slack(lead, costs) >= 2.0
    for seed in _SEEDS:
        assert not at_once(lead, costs, seed).steps_lost
        assert not just_in_time(lead, costs, seed).steps_lost


def test_a_checkpoint_longer_than_the_lead_is_lost() -> None:
    for seed in _SEEDS:
        assert at_once(5.0, GoodputCosts(step=0.5, checkpoint=10.0), seed).steps_lost
        assert just_in_time(5.0, GoodputCosts(step=0.5, checkpoint=10.0), seed).steps_lost
