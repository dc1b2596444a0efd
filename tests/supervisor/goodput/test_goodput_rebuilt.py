"""What is rebuilt from the record of a job is what has happened, so another policy does there what it always does."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.goodput.traces import cases, synthetic
from supervisor.domain.ids import Host
from supervisor.domain.stays import HostStay, WantedSpan
from supervisor.goodput.model import GoodputCase, GoodputCosts
from supervisor.goodput.policies import (
    HABITS,
    RESTARTED,
    SUPERVISOR,
    OtherPolicy,
    scores,
    simulated,
    with_restarts,
)
from supervisor.goodput.rebuilt import rebuilt
from supervisor.goodput.restarting import Habits, restarting
from supervisor.goodput.schedule import AddNode, KillNode, Node, ReclaimSchedule, ScheduledNotice, Step, Withdraw
from supervisor.goodput.timeline import BEGIN
from tests.supervisor.goodput.goodput_recorded import Leadership, SetClock, play

_COSTS = GoodputCosts(step=0.5, checkpoint=4.0, restart=16.0)
_GRID = 1024.0
_ORDER = (KillNode, Withdraw, AddNode, ScheduledNotice)


def _exact(case: GoodputCase) -> GoodputCase:
    """The same case at instants that survive the sum with Unix seconds, and with its ties in a fixed order."""

    def exact(seconds: float) -> float:
        return round(seconds * _GRID) / _GRID

    steps = list[Step]()
    for step in case.schedule.steps:
        if isinstance(step, ScheduledNotice):
            gone = exact(step.at + step.lead)
            steps.append(replace(step, at=exact(step.at), lead=gone - exact(step.at), group=""))
        else:
            steps.append(replace(step, at=exact(step.at)))
    steps.sort(key=lambda step: (step.at, _ORDER.index(type(step)), step.node))
    # What happens at the end itself happens in no simulation.
    steps = [step for step in steps if step.at < exact(case.schedule.seconds)]
    schedule = ReclaimSchedule(tuple(sorted(case.schedule.present)), tuple(steps), exact(case.schedule.seconds))
    return replace(case, schedule=schedule)


def _random(seed: int) -> GoodputCase:
    """Notices that are withdrawn, hosts that go without one, before or after it says, and that come back."""
    chance, nodes = random.Random(seed), [Node(f"n{number}") for number in range(8)]  # noqa: S311 - repeatable
    steps = list[Step]()
    for node in nodes[1:]:
        at = chance.uniform(5.0, 2000.0)
        while at < 6000.0:
            what = chance.choice(("gone", "lost", "withdrawn", "early", "late"))
            stays = chance.uniform(20.0, 150.0)
            if what != "lost":
                lead = {"early": 2.0, "late": 0.5}.get(what, 1.0) * stays
                steps.append(ScheduledNotice(at, node, lead, group=""))
            at += stays
            if what == "withdrawn":
                steps.append(Withdraw(at, node))
            else:
                steps.append(KillNode(at, node))
                at += chance.uniform(30.0, 600.0)
                steps.append(AddNode(at, node))
            at += chance.uniform(20.0, 3000.0)
    steps = [step for step in steps if step.at < 6000.0]
    schedule = ReclaimSchedule(tuple(nodes), tuple(sorted(steps, key=lambda step: step.at)), 6000.0)
    return GoodputCase(name="random", schedule=schedule, least=5, most=8)


async def _of_record(case: GoodputCase, costs: GoodputCosts, path: Path) -> tuple[list[GoodputCase], GoodputCosts]:
    clock = SetClock()
    leader = Leadership(path / "record.sqlite", clock)
    play(case, costs, lambda _now: leader)
    kept = await leader.kept()
    measured = kept.spans[-1].costs
    assert measured.step_seconds is not None
    found = replace(
        costs,
        step=measured.step_seconds or costs.step,
        checkpoint=measured.checkpoint_seconds or costs.checkpoint,
        restart=measured.start_seconds or costs.restart,
    )
    return list(rebuilt(kept.spans, kept.stays, BEGIN)), found


async def _equal(case: GoodputCase, costs: GoodputCosts, path: Path) -> None:
    [again], measured = await _of_record(case, costs, path)
    assert again.schedule == case.schedule
    assert (again.least, again.most, measured) == (case.least, case.most, costs)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("in_process", [True, False], ids=["in process", "by restarts"])
async def test_the_record_of_a_supervised_job_gives_back_its_capacity(
    seed: int,
    in_process: bool,  # noqa: FBT001 - parametrized
    tmp_path: Path,
) -> None:
    costs = _COSTS if in_process else with_restarts(_COSTS)
    await _equal(_exact(_random(seed)), costs, tmp_path)


@pytest.mark.parametrize("number", [0, 1])
async def test_also_that_of_the_recorded_reclaims(number: int, tmp_path: Path) -> None:
    await _equal(_exact(list(cases(1, short=True))[number]), _COSTS, tmp_path)


async def test_a_policy_does_with_the_record_what_it_does_by_itself(tmp_path: Path) -> None:
    """Each is compared with its own simulation, which the benchmarks call."""
    case = _exact(synthetic(16, 4.0, seed=1))
    [again], costs = await _of_record(case, _COSTS, tmp_path)
    own = scores(case, _COSTS, seed=3)
    assert simulated(OtherPolicy.SUPERVISOR, again, costs, seed=3) == own[SUPERVISOR]
    by_restarts = replace(costs, in_process=False)
    assert simulated(OtherPolicy.SUPERVISOR, again, by_restarts, seed=3) == own[RESTARTED]
    for policy, name in (
        (OtherPolicy.SIGTERM, "SIGTERM, poll of 2 s"),
        (OtherPolicy.EVERY_MINUTE, "checkpoints every 60 s"),
        (OtherPolicy.EVERY_TEN_MINUTES, "checkpoints every 600 s"),
    ):
        assert simulated(policy, again, costs, seed=3) == own[name]
        assert restarting(case, _COSTS, HABITS[name], seed=3) == own[name]
    whole = restarting(replace(case, least=16), _COSTS, Habits(), seed=3)
    assert simulated(OtherPolicy.WAITING, again, costs, seed=3) == whole
    assert whole.steps_lost > 0
    on_demand = simulated(OtherPolicy.ON_DEMAND, again, costs, seed=3)
    assert on_demand.useful * costs.step == 16 * case.schedule.seconds
    assert on_demand.useful > own[SUPERVISOR].useful > own["SIGTERM, poll of 2 s"].useful > whole.useful


async def test_a_failover_changes_nothing(tmp_path: Path) -> None:
    """The second supervisor begins with the hosts and the notices that it finds. A host that went meanwhile is gone."""
    case = _exact(_random(1))
    clock, path = SetClock(), tmp_path / "record.sqlite"
    notice = next(step for step in case.schedule.steps if isinstance(step, ScheduledNotice))
    change = BEGIN + notice.at + notice.lead / 2
    first, second = Leadership(path, clock), Leadership(path, clock, "two")
    told = [first]

    def leads(now: float) -> Leadership:
        if now >= change and len(told) == 1:
            told.append(second)
            clock.at = change
            second.noticed = first.noticed
            second.stays.begin([wanting.job for wanting in first.stays._jobs.values()])
            first_ended.append(first.stays.waiting())
        return told[-1]

    first_ended: list[object] = []
    play(case, _COSTS, leads)
    assert first_ended
    end, clock.at = clock.at, change
    async with first.writing():
        clock.at = end
    kept = await second.kept()
    [again] = rebuilt(kept.spans, kept.stays, BEGIN)
    assert again.schedule == case.schedule


def _stay(host: str, begins: float, ends: float, **more: Any) -> HostStay:
    return replace(HostStay(host=Host(host), begins=begins, ends=ends), **more)


def _span(begins: float, ends: float, least: int = 1, most: int = 2) -> WantedSpan:
    return WantedSpan(begins=begins, ends=ends, least=least, most=most, in_process=True)


def test_a_time_without_a_supervisor_and_another_size_begin_a_case_of_their_own() -> None:
    spans = [_span(0, 100), _span(130, 200), _span(300, 400), _span(400, 500, most=3)]
    stays = [_stay("a", 0, 500), _stay("b", 0, 100), _stay("c", 300, 450, gone=True)]
    found = rebuilt(spans, stays, since=50.0)
    assert [(case.schedule.present, case.schedule.seconds, case.most) for case in found] == [
        (("a", "b"), 150.0, 2),
        (("a", "c"), 100.0, 2),
        (("a", "c"), 100.0, 3),
    ]
    # Nobody has seen how b went, and c went in the last part alone.
    assert [case.schedule.steps for case in found] == [(KillNode(50.0, Node("b")),), (), (KillNode(50.0, Node("c")),)]


def test_what_came_later_is_left_out() -> None:
    stays = [_stay("a", 0, 500), _stay("b", 0, 100, gone=True), _stay("c", 300, 450, gone=True)]
    found = rebuilt([_span(0, 100), _span(100, 500)], stays, since=50.0, until=150.0)
    assert [(case.schedule.present, case.schedule.seconds) for case in found] == [(("a", "b"), 100.0)]
    assert [case.schedule.steps for case in found] == [(KillNode(50.0, Node("b")),)]
    assert not rebuilt([_span(200, 300)], stays, since=50.0, until=200.0)


def test_a_notice_from_before_is_one_at_the_beginning() -> None:
    stays = [_stay("a", 0, 90, gone=True, noticed=30, deadline=120), _stay("b", 0, 100, noticed=40)]
    [case] = rebuilt([_span(0, 100)], stays, since=50.0)
    assert case.schedule.steps == (
        ScheduledNotice(0.0, Node("a"), 70.0, ""),
        ScheduledNotice(0.0, Node("b"), 120.0, ""),
        KillNode(40.0, Node("a")),
    )
