from itertools import pairwise

import pytest

from simulator.cloud.schedule import (
    GROUP_LEAD_SECONDS,
    HOLD_SECONDS,
    QUIET_SECONDS,
    SCATTER_SECONDS,
    SETTLE_SECONDS,
    AddNode,
    KillNode,
    ReclaimSchedule,
    ScheduledNotice,
    ScheduleError,
    SchedulePace,
    Withdraw,
    plan,
    training_seconds,
)
from simulator.cloud.trace import DEFAULT_TRACE, Node, TraceCut, cut, load, parse

SEEDS = range(20)


def g4dn(start: float = 1380, end: float = 1860) -> TraceCut:
    """The demo's cut, unless told otherwise."""
    return cut(load(DEFAULT_TRACE), start, end)


def notices(schedule: ReclaimSchedule) -> list[ScheduledNotice]:
    return [step for step in schedule.steps if isinstance(step, ScheduledNotice)]


def kills(schedule: ReclaimSchedule) -> dict[str, float]:
    return {step.node: step.at for step in schedule.steps if isinstance(step, KillNode)}


def test_one_seed_gives_one_schedule() -> None:
    """A replay can be repeated by its seed, and another seed is another replay."""
    assert plan(g4dn(), SchedulePace(seed=7)) == plan(g4dn(), SchedulePace(seed=7))
    assert plan(g4dn(), SchedulePace(seed=7)) != plan(g4dn(), SchedulePace(seed=8))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_removal_is_noticed_at_most_the_lead_and_at_least_five_seconds_before(seed: int) -> None:
    """Nobody gets more notice than was asked for, nor less than is fair; a group is scattered by less than 0.2 s."""
    schedule = plan(g4dn(), SchedulePace(speed=12, lead=120, seed=seed, withdrawal=False))
    gone = kills(schedule)
    assert {notice.node for notice in notices(schedule)} == gone.keys()
    assert len(gone) == 10
    for notice in notices(schedule):
        assert notice.at + notice.lead == pytest.approx(gone[notice.node])
        assert 10.0 - SCATTER_SECONDS <= notice.lead <= 10.0


@pytest.mark.parametrize("seed", SEEDS)
def test_the_least_lead_holds_for_the_last_of_a_group(seed: int) -> None:
    """With exactly the lead that a group needs, the scatter takes nothing away from it."""
    schedule = plan(g4dn(), SchedulePace(speed=16, lead=16 * GROUP_LEAD_SECONDS, seed=seed, withdrawal=False))
    assert min(notice.lead for notice in notices(schedule)) >= GROUP_LEAD_SECONDS


def test_the_nodes_of_one_instant_are_one_group() -> None:
    schedule = plan(g4dn(), SchedulePace(withdrawal=False))
    groups: dict[str, int] = {}
    for notice in notices(schedule):
        groups[notice.group] = groups.get(notice.group, 0) + 1
    assert list(groups.values()) == [5, 4, 1]


def test_a_removal_near_the_start_keeps_its_whole_lead() -> None:
    """Where a notice would precede the start, the start is moved back and the rest of the cut with it."""
    schedule = plan(g4dn(), SchedulePace(speed=12, lead=120, withdrawal=False))
    assert min(notice.at for notice in notices(schedule)) >= 0
    # 60 s of the trace are 5 s on the clock; the lead wants 10 s; half a second is left alone.
    assert min(kills(schedule).values()) == pytest.approx(10.5)
    assert schedule.seconds == pytest.approx(40 + 5.5)


def test_a_lead_under_five_seconds_on_the_clock_is_refused() -> None:
    """A replay that nobody could pass is not started, and the message says why."""
    with pytest.raises(ScheduleError, match=r"120 s at speed 30 is 4\.0 s on the clock"):
        plan(g4dn(), SchedulePace(speed=30, lead=120))


@pytest.mark.parametrize("pace", [SchedulePace(speed=0), SchedulePace(speed=-1), SchedulePace(lead=0)])
def test_speed_and_lead_are_positive(pace: SchedulePace) -> None:
    with pytest.raises(ScheduleError, match="above 0"):
        plan(g4dn(), pace)


def test_a_node_that_goes_soon_after_it_came_is_noticed_on_arrival() -> None:
    piece = cut(parse(["0,add,a", "10000,add,b", "70000,remove,b"]), 1, 100)
    schedule = plan(piece, SchedulePace(speed=10, lead=100, withdrawal=False))
    (arrival,) = [step.at for step in schedule.steps if isinstance(step, AddNode)]
    (notice,) = notices(schedule)
    assert notice.at == arrival
    assert notice.lead == pytest.approx(6.0)


def test_a_node_that_goes_too_soon_for_any_notice_is_refused() -> None:
    """Less than 5 s between arrival and removal would be unfair: the message names the node."""
    piece = cut(parse(["0,add,a", "10000,add,b", "50000,remove,b"]), 1, 100)
    with pytest.raises(ScheduleError, match=r"b is removed 4\.0 s after its arrival"):
        plan(piece, SchedulePace(speed=10, lead=100))


@pytest.mark.parametrize("seed", SEEDS)
def test_the_withdrawal_is_synthetic_quiet_and_over_before_its_deadline(seed: int) -> None:
    """One notice is made up for a node that stays, keeps clear of every group, and is taken back in time."""
    schedule = plan(g4dn(), SchedulePace(seed=seed))
    (made_up,) = [notice for notice in notices(schedule) if notice.synthetic]
    (withdrawal,) = [step for step in schedule.steps if isinstance(step, Withdraw)]
    assert withdrawal.node == made_up.node
    assert made_up.node not in kills(schedule)
    assert withdrawal.at == pytest.approx(made_up.at + HOLD_SECONDS)
    assert withdrawal.at < made_up.at + made_up.lead
    others = [notice.at for notice in notices(schedule) if not notice.synthetic]
    assert max(at for at in others if at < made_up.at) == pytest.approx(made_up.at - QUIET_SECONDS)
    assert min(at for at in others if at > made_up.at) >= withdrawal.at + SETTLE_SECONDS


def test_the_withdrawal_falls_where_most_nodes_are_left() -> None:
    """Nineteen of 24 are free after the first group, 15 after the second: the former can spare one."""
    schedule = plan(g4dn(), SchedulePace())
    names = [notice.group for notice in notices(schedule)]
    assert names == [*["group-1"] * 5, "withdrawn", *["group-2"] * 4, "group-3"]


def test_a_replay_too_dense_for_a_withdrawal_says_so() -> None:
    """Rather than mixing it with a group, the withdrawal is refused; without one the replay is possible."""
    pace = SchedulePace(speed=17, lead=120)
    with pytest.raises(ScheduleError, match="do without"):
        plan(g4dn(1380, 1700), pace)
    assert plan(g4dn(1380, 1700), SchedulePace(speed=17, lead=120, withdrawal=False)).steps


def test_a_cut_without_removals_can_still_have_a_withdrawal() -> None:
    schedule = plan(cut(parse(["0,add,a", "0,add,b"]), 1, 201), SchedulePace(speed=10, lead=100))
    assert [type(step) for step in schedule.steps] == [ScheduledNotice, Withdraw]


def test_steps_are_in_the_order_of_their_times() -> None:
    assert all(one.at <= two.at for one, two in pairwise(plan(g4dn(), SchedulePace()).steps))


@pytest.mark.parametrize(
    ("minimum", "seconds"),
    [
        (1, 45.5),
        # Noticed at 20.5 s, fifteen again at 35.5 s; seventeen at 40.5 s.
        (15, 30.5),
        # The first group leaves 19, the second 15 at 10.5 s.
        (16, 15.5),
        (25, 0.0),
    ],
)
def test_a_job_can_train_while_enough_nodes_are_free_of_notices(minimum: int, seconds: float) -> None:
    schedule = plan(g4dn(), SchedulePace(withdrawal=False))
    assert training_seconds(schedule, minimum) == pytest.approx(seconds, abs=SCATTER_SECONDS)


def test_a_withdrawn_or_unannounced_node_counts_as_it_should() -> None:
    """A notice that is taken back gives its node back; a node that goes without one is gone once."""
    a, b = Node("a"), Node("b")
    steps = (ScheduledNotice(1.0, a, 9.0, "g"), Withdraw(3.0, a), KillNode(6.0, b))
    assert training_seconds(ReclaimSchedule((a, b), steps, 10.0), 2) == pytest.approx(1.0 + 3.0)
