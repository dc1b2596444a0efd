"""The simulations of goodput: what must hold whatever the policies do, and small cases worked out by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace

import pytest

from benchmarks.goodput import tables
from benchmarks.goodput.oracle import best_by_notices, best_worker_steps
from benchmarks.goodput.real import useful_steps
from benchmarks.goodput.traces import cases, synthetic
from simulator.cloud.schedule import AddNode, KillNode, ReclaimSchedule, ScheduledNotice, Step
from simulator.cloud.trace import Node
from simulator.events import JobEvent, JobEventKind
from supervisor.goodput.delays import Delays
from supervisor.goodput.model import GoodputCase, GoodputCosts, groups, possible_steps
from supervisor.goodput.policies import (
    HABITS,
    SUPERVISOR,
    WARM_SHARE,
    scores,
    with_published_costs,
    with_restarts,
    with_warm_restarts,
)
from supervisor.goodput.restarting import Habits, restarting
from supervisor.goodput.supervised import supervised

COSTS = GoodputCosts()
AT_ONCE = Delays(wire=0.0, poll=0.0, discovery=0.0)
NODES = [Node(f"node{number}") for number in range(1, 7)]


def case(*steps: Step, present: int = 4, least: int = 2, seconds: float = 1000.0) -> GoodputCase:
    schedule = ReclaimSchedule(tuple(NODES[:present]), tuple(sorted(steps, key=lambda step: step.at)), seconds)
    return GoodputCase(name="made by hand", schedule=schedule, least=least, most=4)


def reclaim(node: Node, at: float, lead: float = 100.0) -> tuple[Step, Step]:
    return ScheduledNotice(at - lead, node, lead, "group"), KillNode(at, node)


def goodput(found: GoodputCase, seed: int) -> Mapping[str, float]:
    possible = possible_steps(found, COSTS)
    return {name: score.useful / possible for name, score in scores(found, COSTS, seed).items()}


@pytest.mark.parametrize("node_hours", [0.5, pytest.param(2.0, marks=pytest.mark.long), 8.0])
@pytest.mark.parametrize("lead", [10.0, 120.0])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 3))])
def test_nobody_beats_the_oracle(node_hours: float, lead: float, seed: int) -> None:
    found = synthetic(12, node_hours, seed, lead)
    best = best_worker_steps(found, COSTS)
    assert best <= possible_steps(found, COSTS)
    for name, score in scores(found, COSTS, seed).items():
        assert score.useful <= best + 1e-6, name


@pytest.mark.parametrize(
    ("nodes", "seeds", "rates"),
    [(8, range(3), (24.0, 1.5)), pytest.param(16, range(6), (96.0, 24.0, 6.0, 1.5), marks=pytest.mark.long)],
)
def test_more_frequent_reclaims_never_raise_goodput(nodes: int, seeds: range, rates: Sequence[float]) -> None:
    """On average over some traces: a single trace may be lucky."""

    def means(node_hours: float) -> Mapping[str, float]:
        found = [goodput(synthetic(nodes, node_hours, seed), seed) for seed in seeds]
        return {name: sum(each[name] for each in found) / len(seeds) for name in found[0]}

    by_rate = [means(node_hours) for node_hours in rates]
    for name in by_rate[0]:
        falling = [each[name] for each in by_rate]
        assert falling == sorted(falling, reverse=True), name


def test_without_reclaims_all_are_equal_but_for_their_checkpoints() -> None:
    """1,000 s are 15 checkpoints every 60 s, or one every 600 s."""
    found = goodput(case(), seed=1)
    every_minute, every_ten_minutes, keep_alive, *without = found.values()
    assert every_minute == keep_alive == pytest.approx(1 - 15 * 5 / 1000)
    assert every_ten_minutes == pytest.approx(1 - 5 / 1000)
    assert without == pytest.approx([1.0] * 5, abs=1e-4)
    assert best_worker_steps(case(), COSTS) == possible_steps(case(), COSTS) == 4000


def test_what_the_nodes_allow_is_nothing_below_the_minimum_and_bounded_by_the_maximum() -> None:
    gone = [KillNode(100.0, node) for node in NODES[:3]]
    found = case(*gone, AddNode(200.0, NODES[4]), *(AddNode(300.0, Node(f"new{number}")) for number in range(9)))
    assert possible_steps(found, COSTS) == 4 * 100 + 0 * 100 + 2 * 100 + 4 * 700
    assert groups(found.schedule) == 1


def test_a_reclaim_costs_the_supervisor_a_margin_and_one_change() -> None:
    """The host is used until 16 s before it goes, then three hosts change for 2 s."""
    score = supervised(case(*reclaim(NODES[0], 500.0)), COSTS, 1, AT_ONCE)
    assert score.useful == pytest.approx(4 * 484 + 3 * (1000 - 486))
    assert score.unused.announced == pytest.approx(16)
    assert score.unused.changing == pytest.approx(3 * 2.0)
    assert (score.steps_lost, score.restarts) == (0, 0)


BY_RESTARTS = replace(COSTS, change=35.0, in_process=False)


def test_a_change_that_is_a_restart_costs_a_checkpoint_and_a_restart() -> None:
    """It comes at once, as no checkpoint has been timed yet, and the host that goes stops with the others."""
    score = supervised(case(*reclaim(NODES[0], 500.0)), BY_RESTARTS, 1, AT_ONCE)
    assert score.unused.leaving == pytest.approx(4 * 35.0)
    assert (score.steps_lost, score.restarts) == (0, 1)


def test_a_warm_restart_costs_a_checkpoint_and_its_part_of_a_restart() -> None:
    """A start of all processes, after a stop, costs the whole of it."""
    warm = with_warm_restarts(COSTS)
    score = supervised(case(*reclaim(NODES[0], 500.0)), warm, 1, AT_ONCE)
    cold = supervised(case(*reclaim(NODES[0], 500.0)), BY_RESTARTS, 1, AT_ONCE)
    assert score.useful - cold.useful == pytest.approx(3 * (1 - WARM_SHARE) * COSTS.restart, abs=3)
    stopped = case(*reclaim(NODES[0], 500.0), AddNode(600.0, NODES[4]), present=3, least=3)
    assert supervised(stopped, warm, 1, AT_ONCE) == supervised(stopped, BY_RESTARTS, 1, AT_ONCE)


def test_a_host_joins_by_a_restart_once_it_has_waited_for_what_that_costs() -> None:
    """It comes at 600 s, a restart stops the other three for 35 s, and they train on to the end of a step."""
    score = supervised(case(*reclaim(NODES[0], 500.0), AddNode(600.0, NODES[5])), BY_RESTARTS, 1, AT_ONCE)
    assert 3 * 35.0 <= score.unused.joining <= 3 * 35.0 + 5
    assert score.unused.leaving == score.unused.growing == pytest.approx(4 * 35.0)
    assert (score.steps_lost, score.restarts) == (0, 2)


def test_a_host_that_waits_joins_with_the_change_for_one_that_leaves() -> None:
    steps = [*reclaim(NODES[0], 500.0), AddNode(600.0, NODES[5]), *reclaim(NODES[1], 720.0)]
    score = supervised(case(*steps), BY_RESTARTS, 1, AT_ONCE)
    assert score.unused.joining < 3 * 35.0
    assert (score.steps_lost, score.restarts) == (0, 2)


def test_a_job_below_its_minimum_trains_until_its_last_checkpoint_just_fits() -> None:
    """The first stop is at once, as no checkpoint has been timed yet; the second is 17 s before its reclaim."""
    gone = [*reclaim(NODES[0], 300.0), *reclaim(NODES[4], 700.0)]
    found = case(*gone, AddNode(400.0, NODES[4]), AddNode(800.0, NODES[5]), present=2, least=2)
    score = supervised(found, COSTS, 1, AT_ONCE)
    assert (score.steps_lost, score.restarts) == (0, 2)
    # From 2 s to 201 s, from 432 s to 683 s, and from 832 s on.
    assert score.useful == pytest.approx(2 * (199 + 251 + 168))


def test_a_host_that_goes_before_it_could_be_left_costs_steps() -> None:
    """A lead that is shorter than a poll breaks the ring, which returns to what its processes have in memory."""
    score = supervised(case(*reclaim(NODES[0], 500.0, lead=0.5)), COSTS, 1)
    assert (score.steps_lost, score.restarts) == (10, 0)
    assert score.unused.lost == 40


def test_a_checkpoint_that_a_reclaim_interrupts_is_none() -> None:
    """Two nodes are below the minimum of three, and are gone before the checkpoint is complete."""
    found = case(*reclaim(NODES[0], 500.0, lead=3.0), *reclaim(NODES[1], 500.0, lead=3.0), least=3)
    score = supervised(found, COSTS, 1, AT_ONCE)
    assert score.useful == 0
    assert score.steps_lost == pytest.approx(498.0)


@pytest.mark.parametrize("name", [name for name, habits in HABITS.items() if habits.checkpoint_every == 60])
def test_an_unannounced_loss_costs_what_was_not_saved(name: str) -> None:
    """At 500 s, 45 s have passed since the seventh checkpoint was complete."""
    habits = HABITS[name]
    score = restarting(case(*reclaim(NODES[0], 500.0)), COSTS, habits, 1)
    again = 500.0 + habits.detect + COSTS.restart
    saves = (1000.0 - again) // 65
    assert score.steps_lost == pytest.approx(45.0)
    assert score.useful == pytest.approx(4 * 7 * 60 + 3 * (1000.0 - again - saves * 5))


def test_sigterm_saves_and_restarts_without_the_node() -> None:
    score = restarting(case(*reclaim(NODES[0], 500.0)), COSTS, Habits(poll=0.0), 1)
    assert score.useful == pytest.approx(4 * 400 + 3 * (1000 - 435))
    assert (score.steps_lost, score.restarts) == (0, 1)


def test_new_nodes_join_by_a_restart_once_they_have_waited_as_long_as_it_costs() -> None:
    """One node waits for the 3 x 30 node-seconds that the others lose."""
    score = restarting(case(AddNode(100.0, NODES[4]), present=3), COSTS, Habits(poll=2.0), 1)
    assert score.useful == pytest.approx(3 * 190 + 4 * (1000 - 190 - 35))
    assert score.restarts == 1


def test_the_oracle_leaves_at_the_last_moment_and_takes_in_only_who_stays_long_enough() -> None:
    """A node that stays for 5 s is not worth two changes of three others."""
    found = case(AddNode(100.0, NODES[4]), *reclaim(NODES[4], 105.0, lead=5.0), present=3)
    assert best_worker_steps(found, COSTS) == 3 * 1000
    found = case(AddNode(100.0, NODES[4]), *reclaim(NODES[4], 205.0), present=3)
    assert best_worker_steps(found, COSTS) == pytest.approx(3 * 100 + 4 * 103 + 3 * (1000 - 207))


def test_an_oracle_that_learns_by_notices_leaves_out_no_host_without_one() -> None:
    """One host goes 10 s before the notice of another. The oracle saves, and starts the other two at that notice."""
    found = case(*reclaim(NODES[0], 500.0, lead=40.0), *reclaim(NODES[1], 550.0, lead=40.0))
    assert best_worker_steps(found, BY_RESTARTS) == pytest.approx(4 * 500 + 2 * (1000 - 535))
    assert best_by_notices(found, BY_RESTARTS) == pytest.approx(4 * 500 + 2 * (1000 - 510 - 30))
    told_before = case(*reclaim(NODES[0], 500.0, lead=40.0), *reclaim(NODES[1], 550.0, lead=60.0))
    assert best_by_notices(told_before, BY_RESTARTS) == best_worker_steps(told_before, BY_RESTARTS)


@pytest.mark.parametrize("node_hours", [0.5, 8.0])
@pytest.mark.parametrize("lead", [10.0, 120.0])
def test_the_supervisor_does_not_beat_an_oracle_that_learns_by_notices(node_hours: float, lead: float) -> None:
    found = synthetic(12, node_hours, 1, lead)
    for costs in (COSTS, replace(COSTS, in_rounds=True), BY_RESTARTS):
        by_notices = best_by_notices(found, costs)
        assert supervised(found, costs, 1).useful <= by_notices + 1e-6
        assert by_notices <= best_worker_steps(found, costs) + 1e-6


@pytest.mark.parametrize(("at", "changing"), [(450.0, 3 * 2.0), (440.0, 3 * 2.0 + 4 * 2.0)])
def test_a_node_joins_in_the_round_in_which_another_one_leaves_if_it_is_ready_just_before(
    at: float, changing: float
) -> None:
    """Its process starts for 30 s, and the other leaves 14 s before it goes. All stop once for 2 s, or twice."""
    found = case(*reclaim(NODES[0], 500.0, lead=100.0), AddNode(at, NODES[4]), present=3)
    in_rounds = supervised(found, replace(COSTS, in_rounds=True), 1, AT_ONCE)
    assert (in_rounds.restarts, in_rounds.steps_lost) == (0, 0)
    assert in_rounds.unused.changing == pytest.approx(changing, abs=0.5)


def test_a_job_that_saves_without_a_notice_loses_what_came_after_its_last_save() -> None:
    """A save of 100 s does not fit into a notice of 50 s; the last one was complete at 400 s."""
    costs = with_restarts(replace(COSTS, checkpoint=100.0, save_every=300.0))
    score = supervised(case(*reclaim(NODES[0], 500.0, lead=50.0)), costs, 1, AT_ONCE)
    assert score.unused.saving == pytest.approx(4 * 100 + 3 * 100)
    assert 50 < score.steps_lost < 60
    in_process = supervised(case(*reclaim(NODES[0], 500.0, lead=50.0)), replace(costs, change=2.0, in_process=True), 1)
    assert (in_process.steps_lost, in_process.restarts) == (0, 0)


def test_only_jobs_whose_notices_are_too_short_to_save_also_save_without_one() -> None:
    """Four groups in 1,000 s are 250 s apart."""
    gone = [step for number in range(4) for step in reclaim(NODES[number], 500.0 + number, lead=100.0)]
    assert with_published_costs(case(*gone), 60.0, 47.0).save_every is None
    assert with_published_costs(case(*gone), 200.0, 47.0).save_every == pytest.approx((2 * 200 * 250) ** 0.5)


def test_the_oracle_saves_just_before_it_has_too_few_nodes() -> None:
    found = case(*reclaim(NODES[0], 500.0), AddNode(600.0, NODES[4]), present=2)
    assert best_worker_steps(found, COSTS) == pytest.approx(2 * 495 + 2 * (400 - 30))


def recorded() -> Sequence[GoodputCase]:
    return [each for each in cases(1, short=True) if each.name.startswith("recorded")]


@pytest.mark.parametrize("found", recorded(), ids=lambda each: each.name)
def test_the_supervisor_loses_no_step_of_the_recorded_trace_and_beats_what_it_replaces(found: GoodputCase) -> None:
    simulated = tables.simulated(found, COSTS, 1)
    ours = simulated.scores[SUPERVISOR]
    assert ours.steps_lost == 0
    assert ours.useful > max(simulated.scores[name].useful for name in HABITS)
    assert simulated.share(simulated.oracle - ours.useful) < 0.02
    assert ours.restarts < simulated.groups / 4


@pytest.mark.parametrize("costs", [COSTS, BY_RESTARTS, replace(BY_RESTARTS, save_every=600.0)])
def test_every_possible_step_is_useful_or_has_a_reason(costs: GoodputCosts) -> None:
    for found in cases(1, short=True):
        score = supervised(found, costs, 1)
        possible = possible_steps(found, COSTS)
        assert score.useful + sum(astuple(score.unused)) == pytest.approx(possible)


def test_the_same_seed_gives_the_same_result() -> None:
    found, again = synthetic(8, 4.0, 7), synthetic(8, 4.0, 7)
    assert scores(found, COSTS, 3) == (with_three := scores(again, COSTS, 3))
    assert with_three != scores(found, COSTS, 4)


def test_a_row_names_the_reasons_why_the_target_is_missed() -> None:
    simulated = tables.simulated(synthetic(12, 0.5, 1), COSTS, 1)
    behind = [figure for figure in tables.goodput(simulated).figures if figure.target is not None]
    assert len(behind) == 2
    for figure in behind:
        assert figure.met is False
        assert figure.target is not None
        assert "(stops and starts) and " in figure.target.why


def test_a_repeated_step_of_real_processes_counts_once() -> None:
    """Two workers make steps 1 and 2; step 2 is made again in another ring, by three."""
    made = [(1.0, 1, 1, 2), (2.0, 2, 1, 2), (3.0, 2, 2, 3)]
    events = [
        JobEvent(at, JobEventKind.STEP_APPLIED, {"run": 1, "epoch": epoch, "step": step, "rank": rank})
        for at, step, epoch, workers in made
        for rank in range(workers)
    ]
    assert useful_steps(events, 0.0, 10.0) == 2 + 3
    assert useful_steps(events, 0.0, 2.5) == 2 + 2
    assert useful_steps(events, 1.5, 3.0) == 2


def test_a_stop_at_an_agreed_step_is_answered_whatever_a_step_takes() -> None:
    """Tenths of a second do not add up to whole steps exactly; the job waited until the host went, 100 s later."""
    found = case(*reclaim(NODES[0], 500.0), AddNode(410.0, NODES[4]), present=3, least=3)
    for step in (0.1, 0.3, 0.7, 1.0):
        score = supervised(found, replace(COSTS, step=step), 1, AT_ONCE)
        assert score.unused.stopped * step < 3 * 60
