from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.cloud.schedule import AddNode, KillNode, ReclaimSchedule, ScheduledNotice, ScheduleError, Withdraw
from simulator.cloud.synthetic import (
    HARD_LEAD_SECONDS,
    HARD_MINIMUM,
    HARD_NODES,
    HOUR,
    SPARED_SECONDS,
    Rates,
    fixed_rate,
    hard,
)
from simulator.cloud.trace import Node
from simulator.guarantees import GuaranteeCosts, validate_schedule
from simulator.scenarios import ScenarioOptions, ScenarioPart, scenarios
from tests.testkit.properties import examples

COSTS = GuaranteeCosts(step=0.2, checkpoint=0.01)


@given(st.integers())
def test_one_seed_gives_one_trace(seed: int) -> None:
    assert fixed_rate(Rates(), seed) == fixed_rate(Rates(), seed)
    assert hard(seed) == hard(seed)


def test_other_seeds_give_other_traces() -> None:
    assert len({fixed_rate(Rates(), seed).moments for seed in range(10)}) == 10
    assert len({hard(seed).steps for seed in range(10)}) == 10


@given(st.integers(0, 1000), st.sampled_from([2.0, 4.0, 10.0]))
def test_nodes_come_before_they_go_and_are_replaced(seed: int, node_hours: float) -> None:
    """Nobody goes who is not there or has just come; groups have the wanted sizes; all are there again at the end."""
    rates = Rates(node_hours=node_hours)
    piece = fixed_rate(rates, seed)
    since: dict[Node, float] = dict.fromkeys(piece.present, 0.0)
    for moment in piece.moments:
        for node in moment.removed:
            assert moment.at - since.pop(node) >= SPARED_SECONDS
        assert len(moment.removed) in (0, *rates.sizes) or len(moment.removed) > max(rates.sizes)
        since.update(dict.fromkeys(moment.added, moment.at))
    assert len(since) == rates.nodes
    assert len({moment.at for moment in piece.moments}) == len(piece.moments)
    assert all(one.at < piece.seconds for one in piece.moments)


@pytest.mark.parametrize("node_hours", [2.0, 10.0])
def test_removals_come_at_the_wanted_rate(node_hours: float) -> None:
    """Over many groups a node is there for so many hours on average; a tenth more or less is chance."""
    rates = Rates(node_hours=node_hours, groups=2000)
    piece = fixed_rate(rates, 1)
    removals = sum(len(moment.removed) for moment in piece.moments)
    assert rates.nodes * piece.seconds / HOUR / removals == pytest.approx(node_hours, rel=0.1)


def walk(schedule: ReclaimSchedule) -> Iterator[tuple[float, int]]:
    """After each step: its time, and the nodes that are there without a notice."""
    there, noticed = set(schedule.present), set[Node]()
    for step in schedule.steps:
        match step:
            case AddNode(node=node):
                assert node not in there
                there.add(node)
            case ScheduledNotice(node=node):
                assert node in there
                noticed.add(node)
            case Withdraw(node=node):
                noticed.remove(node)
            case KillNode(node=node):
                there.remove(node)
        yield step.at, len(there - noticed)


@examples(30)
@given(st.integers())
def test_the_hard_schedule_is_possible_and_hard(seed: int) -> None:
    """Announced nodes go when their lead is over, too few are left twice at least, once none, at the end enough."""
    schedule = hard(seed)
    true = [step for step in schedule.steps if isinstance(step, ScheduledNotice) and not step.synthetic]
    gone = {step.node: step.at for step in schedule.steps if isinstance(step, KillNode)}
    assert {notice.node: pytest.approx(notice.at + HARD_LEAD_SECONDS) for notice in true} == gone
    free = [left for _, left in walk(schedule)]
    assert min(free) == 0
    assert free[-1] >= HARD_MINIMUM
    below = [left < HARD_MINIMUM for left in free]
    assert sum(now and not before for before, now in pairwise([False, *below])) >= 2
    assert len(schedule.present) == HARD_NODES


def test_a_schedule_that_is_too_fast_for_the_promise_is_refused() -> None:
    """A lead of less than a step, a checkpoint and 2 s is nothing to judge by."""
    validate_schedule(hard(1), HARD_MINIMUM, GuaranteeCosts(step=5.0, checkpoint=0.9))
    with pytest.raises(ScheduleError, match=r"8\.00 s on the clock is less than a step of 5\.00 s"):
        validate_schedule(hard(1), HARD_MINIMUM, GuaranteeCosts(step=5.0, checkpoint=1.1))


def test_a_schedule_that_ends_below_the_minimum_is_refused() -> None:
    """The job could not come to its end: that is said at once, and not after the job was waited for."""
    with pytest.raises(ScheduleError, match=r"only 6 nodes .* below the minimum of 7"):
        validate_schedule(hard(1), HARD_MINIMUM + 2, COSTS)


@pytest.mark.parametrize("part", list(ScenarioPart))
def test_every_part_can_be_judged(part: ScenarioPart) -> None:
    assert scenarios(ScenarioOptions(part), COSTS)


@pytest.mark.parametrize("part", [ScenarioPart.TRACE, ScenarioPart.RATES, ScenarioPart.CI])
def test_a_speed_that_breaks_the_promise_is_refused(part: ScenarioPart) -> None:
    """30 s of the trace at twenty times its pace are 1.5 s on the clock."""
    with pytest.raises(ScheduleError, match=r"1\.5 s on the clock"):
        scenarios(ScenarioOptions(part, leads=(30.0,), speed=20.0), COSTS)


def test_all_acts_are_fair_and_the_whole_trace_is_in_them() -> None:
    """Both leads, three seeds, nothing refused; the recorded acts have all 79 arrivals and 74 removals."""
    agreed, *chosen = scenarios(ScenarioOptions(), COSTS)
    assert agreed.name == "agreed"
    assert len(chosen) == 2 + 3 + 3
    for scenario in chosen[:2]:
        steps = scenario.schedule.steps
        real = [step for step in steps if isinstance(step, AddNode) and not step.node.startswith("made-up")]
        assert (len(real), sum(isinstance(step, KillNode) for step in steps)) == (79, 74)
        assert not any(isinstance(step, Withdraw) for step in steps)


@pytest.mark.parametrize("seed", range(20))
def test_fixed_rates_fit_both_leads(seed: int) -> None:
    """No seed makes an act that would be refused, whatever the lead."""
    for leads in ((30.0,), (120.0,)):
        assert scenarios(ScenarioOptions(ScenarioPart.RATES, seeds=(seed,), leads=leads), COSTS)
