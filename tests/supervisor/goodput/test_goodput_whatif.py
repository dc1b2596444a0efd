"""What a job would have made of its own history if something were different."""

import math
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarks.goodput.traces import synthetic
from supervisor.goodput.model import GoodputCase, GoodputCosts
from supervisor.goodput.policies import with_restarts
from supervisor.goodput.schedule import AddNode, KillNode, Node, ReclaimSchedule, ScheduledNotice, Step, Withdraw
from supervisor.goodput.supervised import supervised
from supervisor.goodput.whatif import WhatIf, checkpoint_interval, losses, planned

_COSTS = GoodputCosts(step=1.0, checkpoint=20.0, restart=30.0)
_CASE = synthetic(16, 4.0, seed=3)
_SEED = 1


def _scheduled(*steps: Step, nodes: int = 4, seconds: float = 3600.0) -> ReclaimSchedule:
    return ReclaimSchedule(tuple(Node(f"n{number}") for number in range(nodes)), steps, seconds)


@pytest.mark.parametrize("in_process", [True, False])
def test_as_it_is_it_does_what_the_supervisor_does(*, in_process: bool) -> None:
    costs = replace(_COSTS, in_process=in_process)
    alone = supervised(_CASE, costs if in_process else with_restarts(costs), _SEED)
    twice = planned(WhatIf(), [_CASE, _CASE], costs, _SEED)
    assert (twice.useful, twice.restarts) == (2 * alone.useful, 2 * alone.restarts)


def test_each_change_changes_what_it_names() -> None:
    what = WhatIf(least=3, most=9, window=2.5, save_every=60.0, checkpoint=7.0, restart=8.0, in_process=False)
    case, costs, policy = what.case(_CASE, 1), what.costs(_COSTS), what.policy()
    assert (case.least, case.most, case.schedule) == (3, 9, _CASE.schedule)
    assert (costs.checkpoint, costs.restart, costs.save_every, costs.change) == (7.0, 8.0, 60.0, 15.0)
    assert policy.window_seconds == 2.5
    assert WhatIf(most=2).case(_CASE, 1).least == 2, "no job needs more than it wants"


def test_another_notice_comes_for_the_same_hosts() -> None:
    """Not before a host is there, none for a host that got none, and one that is withdrawn stays."""
    n0, n1, n2, n3, late = (Node(name) for name in ("n0", "n1", "n2", "n3", "late"))
    schedule = _scheduled(
        AddNode(100.0, late),
        ScheduledNotice(150.0, n0, 50.0, ""),
        ScheduledNotice(160.0, n1, 50.0, ""),
        ScheduledNotice(170.0, late, 30.0, ""),
        Withdraw(180.0, n1),
        KillNode(200.0, n0),
        KillNode(200.0, late),
        KillNode(300.0, n2),
        ScheduledNotice(400.0, n3, 9999.0, ""),
    )
    changed = WhatIf(lead=120.0).case(GoodputCase(name="", schedule=schedule, least=1, most=5), 1).schedule
    notices = {step.node: (step.at, step.lead) for step in changed.steps if isinstance(step, ScheduledNotice)}
    assert notices == {n0: (80.0, 120.0), n1: (160.0, 50.0), late: (100.0, 100.0), n3: (400.0, 9999.0)}
    assert [step for step in changed.steps if isinstance(step, KillNode)] == [
        step for step in schedule.steps if isinstance(step, KillNode)
    ]
    assert all(earlier.at <= later.at for earlier, later in pairwise(changed.steps))


def test_longer_notices_and_a_smaller_minimum_lose_less() -> None:
    case = replace(_CASE, least=15)
    trained = [planned(WhatIf(lead=lead), [case], _COSTS, _SEED) for lead in (2.0, 120.0)]
    assert trained[0].steps_lost > trained[1].steps_lost
    smaller = planned(WhatIf(least=8), [case], _COSTS, _SEED)
    assert smaller.useful > trained[1].useful


def test_losses_are_counted_by_group_and_by_what_a_save_needs() -> None:
    n0, n1, n2, n3 = (Node(f"n{number}") for number in range(4))
    schedule = _scheduled(
        ScheduledNotice(100.0, n0, 50.0, ""),
        KillNode(150.0, n0),
        KillNode(150.0, n1),
        ScheduledNotice(170.0, n2, 30.0, ""),
        KillNode(200.0, n2),
        ScheduledNotice(300.0, n3, 5.0, ""),
        KillNode(305.0, n3),
    )
    case = GoodputCase(name="", schedule=schedule, least=1, most=4)
    withdrawn = _scheduled(ScheduledNotice(10.0, n0, 50.0, ""), Withdraw(20.0, n0), KillNode(900.0, n0))
    assert losses([replace(case, schedule=withdrawn)], needed=21.0) == (1, 1), "it went without a notice"
    assert losses([case], needed=21.0) == (3, 2)
    assert losses([case, case], needed=4.0) == (6, 2)


def test_the_best_interval_is_about_the_best_of_those_that_are_simulated() -> None:
    """Every host goes without a notice, and is back at once; the best of many intervals is hardly better."""
    chance, seconds, between = random.Random(5), 400_000.0, 4000.0  # noqa: S311 - repeatable
    at, steps = 0.0, list[Step]()
    while (at := at + chance.expovariate(1 / between)) < seconds:
        node = Node(f"n{chance.randrange(4)}")
        steps += [KillNode(at, node), AddNode(at + 1.0, node)]
    case = GoodputCase(name="", schedule=_scheduled(*steps, seconds=seconds), least=4, most=4)
    costs = replace(_COSTS, in_process=False)
    gone, sudden = losses([case], needed=21.0)
    assert gone == sudden > 50
    best = checkpoint_interval(seconds / sudden, costs.checkpoint)
    assert best == pytest.approx(math.sqrt(2 * between * 20.0), rel=0.2)
    useful = {
        every: planned(WhatIf(save_every=every), [case], costs, _SEED).useful
        for every in (best, best / 6, best / 3, best * 2, best * 4, best * 8)
    }
    assert useful[best] > max(useful.values()) * 0.995
    assert useful[best] > useful[best / 6] * 1.02
    assert useful[best] > useful[best * 8] * 1.02
