"""A job on hosts that last as long as those of a capacity pool did, as the record has seen it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.domain.capacity import MachinePool, PriceClass
from supervisor.domain.ids import Host, JobName
from supervisor.domain.stays import HostStay, WantedSpan
from supervisor.goodput import pools as module
from supervisor.goodput.model import GoodputCase, GoodputCosts
from supervisor.goodput.pools import LEAST_WENT, ObservedTime, ObservedTimes, PoolError, PoolHistory, pool_history
from supervisor.goodput.rebuilt import rebuilt
from supervisor.goodput.schedule import AddNode, KillNode, Node, ReclaimSchedule, ScheduledNotice
from supervisor.goodput.whatif import WhatIf, planned

_H = 3600.0
_DAY = 24 * _H
_SPAN = 6 * _DAY
_T0 = 1_700_000_000.0
_SPOT = MachinePool(cloud="c", zone="z", instance_type="t", price_class=PriceClass.SPOT)
_JOB, _OTHER = JobName("job"), JobName("other")


def _stay(host: str, begins: float, ends: float, lead: float | None = None, *, gone: bool = True) -> HostStay:
    at, noticed = _T0 + ends, None if lead is None else _T0 + ends - lead
    return HostStay(
        host=Host(host), begins=_T0 + begins, ends=at, gone=gone, noticed=noticed, deadline=noticed and at, pool=_SPOT
    )


def _history(seed: int, life: float, gap: float = 1200.0, hosts: int = 5, seconds: float = _SPAN) -> list[HostStay]:
    """Returns the stays of a job each of whose hosts lasts that long on average, and is followed after a gap."""
    chance, stays = Random(seed), list[HostStay]()  # noqa: S311 - repeatable
    for place in range(hosts):
        at, number = 0.0, 0
        while at < seconds:
            lasts = 130.0 + chance.expovariate(1 / life)
            ends = min(seconds, at + lasts)
            is_gone = at + lasts < seconds
            stays.append(_stay(f"{place}-{number}", at, ends, 120.0 if is_gone else None, gone=is_gone))
            at, number = at + lasts + chance.expovariate(1 / gap), number + 1
    return stays


def _seen(*stays: HostStay, since: float = 0.0, until: float = _SPAN) -> PoolHistory:
    return pool_history("c/z/t", {_JOB: stays}, _T0 + since, _T0 + until)


def _trained(stays: Sequence[HostStay], what: WhatIf, seed: int = 1) -> float:
    """Returns the share of the time that a job with these hosts trains."""
    span = WantedSpan(begins=_T0, ends=_T0 + _SPAN, least=3, most=5, in_process=True)
    cases = rebuilt([span], stays, _T0)
    return planned(what, cases, GoodputCosts(step=1.0), seed).useful / (5 * _SPAN)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_the_own_pool_as_another_one_comes_out_near_the_own_history(seed: int) -> None:
    """And a pool whose hosts last half as long, or whose hosts come back later, is worse."""
    stays = _history(seed, 6 * _H)
    own = _trained(stays, WhatIf())
    same = _trained(stays, WhatIf(pool=_seen(*stays)), seed)
    assert same == pytest.approx(own, abs=0.015)
    shorter = _trained(stays, WhatIf(pool=_seen(*_history(seed + 50, 3 * _H))), seed)
    scarcer = _trained(stays, WhatIf(pool=_seen(*_history(seed + 50, 6 * _H, gap=2400.0))), seed)
    assert max(shorter, scarcer) < same - 0.02


def test_hosts_that_are_still_there_count_for_what_they_lasted() -> None:
    """Otherwise the few that went early would speak for all."""
    times = ObservedTimes([ObservedTime(_H, ended=True)] * 2 + [ObservedTime(99 * _H, ended=False)] * 8)
    chance = Random(1)  # noqa: S311 - repeatable
    drawn = [times.draw(chance).seconds for _ in range(2000)]
    assert Counter(drawn)[_H] / 2000 == pytest.approx(0.2, abs=0.03)
    rest = [seconds for seconds in drawn if seconds != _H]
    assert sum(rest) / len(rest) == pytest.approx(_H + 397 * _H, rel=0.1)
    assert ObservedTimes([ObservedTime(_H, ended=False)]).draw(chance).seconds == float("inf")


@pytest.mark.parametrize("gone", [0.02, 0.5, 1.0])
def test_the_mean_of_what_is_drawn_is_that_of_what_was_seen(gone: float) -> None:
    """Whatever share of it was cut off by the end of the record: here each host after its time, or a random one."""
    chance = Random(7)  # noqa: S311 - repeatable
    times = list[ObservedTime]()
    for _ in range(4000):
        lasts = chance.expovariate(1 / _H)
        cut = chance.expovariate((1 - gone) / gone / _H) if gone < 1 else float("inf")
        times.append(ObservedTime(min(lasts, cut), ended=lasts <= cut))
    seen = ObservedTimes(times)
    drawn = [seen.draw(chance).seconds for _ in range(4000)]
    assert sum(drawn) / len(drawn) == pytest.approx(_H, rel=0.15)


def test_what_is_known_of_a_pool() -> None:
    """Within the span: what was cut off has not ended. Another host of the same job ends the first gap that is open."""
    fixed = replace(_SPOT, price_class=PriceClass.ON_DEMAND)
    stays = [
        _stay("a", -5.0, 10.0, lead=4.0),
        _stay("b", 0.0, 20.0),
        replace(_stay("b", 20.0, 25.0), gone=False),
        _stay("c", 16.0, 300.0),
        replace(_stay("d", 1.0, 9.0), pool=fixed),
        _stay("withdrawn", 1.0, 30.0, lead=20.0, gone=False),
        _stay("withdrawn", 30.0, 60.0, gone=False),
        _stay("before", -9.0, 0.0),
        _stay("after", 100.0, 101.0),
    ]
    seen = pool_history("c/z/t", {_JOB: stays, _OTHER: [_stay("e", 2.0, 12.0)]}, _T0, _T0 + 100.0)
    times = [(time.seconds, time.ended, time.lead) for time in seen.lives._times]
    assert times == [
        (5.0, False, None),
        (10.0, True, 4.0),
        (10.0, True, None),
        (20.0, True, None),
        (59.0, False, None),
        (84.0, False, None),
    ]
    assert [(time.seconds, time.ended) for time in seen.gaps._times] == [(0.0, True), (0.0, False), (6.0, True)]


def test_too_little_and_too_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = GoodputCase(name="x", schedule=ReclaimSchedule((), (), _DAY), least=1, most=3)
    few = [_stay(str(number), 0.0, 10.0 + number) for number in range(LEAST_WENT)]
    assert _seen(*few).case(case, 1).schedule.seconds == _DAY
    with pytest.raises(PoolError, match=r"In c/z/t, hosts that are not on demand went 9 times in that time"):
        _seen(*few[1:], _stay("there", 0.0, 99.0, gone=False)).case(case, 1)
    monkeypatch.setattr(module, "MOST_STEPS", 10)
    with pytest.raises(PoolError, match="come and go too often"):
        _seen(*_history(1, 600.0)).case(replace(case, schedule=replace(case.schedule, seconds=9 * _DAY)), 1)


@settings(max_examples=60)
@given(
    lives=st.lists(st.tuples(st.floats(0.0, 500), st.floats(0.0, 900) | st.none()), min_size=LEAST_WENT, max_size=20),
    gaps=st.lists(st.tuples(st.floats(0.0, 200), st.booleans()), max_size=5),
    there=st.integers(0, 5),
    seed=st.integers(0, 9),
)
def test_a_host_comes_is_announced_and_goes_once(
    lives: list[tuple[float, float | None]], gaps: list[tuple[float, bool]], there: int, seed: int
) -> None:
    """And a job never has more hosts than it wants, or had."""
    seen = PoolHistory(
        "c/z/t",
        ObservedTimes(ObservedTime(seconds, ended=True, lead=lead) for seconds, lead in lives),
        ObservedTimes(ObservedTime(seconds, ended) for seconds, ended in gaps),
    )
    nodes = tuple(Node(str(number)) for number in range(there))
    case = GoodputCase(name="x", schedule=ReclaimSchedule(nodes, (), 1000.0), least=1, most=3)
    found = seen.case(case, seed).schedule
    assert found == seen.case(case, seed).schedule
    assert len(found.present) == there
    now, been, noticed = set(found.present), set(found.present), set[str]()
    for step in found.steps:
        assert 0.0 <= step.at < 1000.0
        match step:
            case AddNode():
                assert step.node not in been
                now.add(step.node)
                been.add(step.node)
            case ScheduledNotice():
                assert step.node in now
                assert step.node not in noticed
                noticed.add(step.node)
            case KillNode():
                now.remove(step.node)
        assert len(now) <= max(3, there)
