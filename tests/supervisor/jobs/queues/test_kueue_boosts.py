"""How much priority a job gets by the work that a preemption would cost it."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.fanout.ranks import Save
from supervisor.jobs.queues.kueue.booster import Boost, BoostPolicy, Exposure, next_boost
from tests.supervisor.decide.decide_builders import T0
from tests.testkit.properties import examples

POLICY = BoostPolicy(maximum=12, step_seconds=600.0, hold_seconds=300.0, margin_seconds=5.0)
RUNNING = Exposure(run=1, save=None, grace=30.0, attended=True)
FRESH = Boost(run=1, began=T0, value=0, changed_at=T0)

_AGES = st.floats(0, 1e6)
_SAVED = st.sampled_from([None, 1.0, 60.0])
_EVENTS = st.lists(
    st.tuples(st.floats(0, 2000), st.sampled_from(["look", "save", "run", "lost", "leader"]), _SAVED), max_size=60
)


def _value(exposure: Exposure, age: float) -> int:
    """The boost that a job gets whose run is so old, after no change for long."""
    return next_boost(replace(FRESH, changed_at=-T0), exposure, POLICY, T0 + age).value


def _saved(after: float, seconds: float | None = 60.0, *, run: int = 1) -> Exposure:
    return replace(RUNNING, save=Save(run=run, at=T0 + after, seconds=seconds))


@pytest.mark.parametrize(
    ("exposure", "age", "value"),
    [
        (RUNNING, 599.0, 0),
        (RUNNING, 600.0, 1),
        (RUNNING, 86400.0, 12),
        (_saved(3000.0), 3599.0, 0),
        (_saved(3000.0), 4200.0, 2),
        (_saved(3000.0, seconds=None), 4200.0, 2),
        (_saved(3000.0, seconds=25.0), 86400.0, 0),
        (_saved(3000.0, seconds=26.0), 86400.0, 12),
        (replace(_saved(3000.0, seconds=1.0), attended=False), 4200.0, 2),
        (_saved(-3000.0, run=0), 1200.0, 2),
        (_saved(-3000.0), 1200.0, 2),
    ],
)
def test_it_grows_with_the_work_since_the_last_checkpoint(exposure: Exposure, age: float, value: int) -> None:
    """Not beyond the maximum, and not for a job that can save within the grace of its pods."""
    assert _value(exposure, age) == value


@examples(200)
@given(_AGES, _AGES)
def test_a_job_that_would_lose_a_step_more_has_the_larger_boost(one: float, other: float) -> None:
    """Up to the maximum; within a step jobs may be alike, and their order is never the reverse."""
    less, more = sorted((one, other))
    assert 0 <= _value(RUNNING, less) <= _value(RUNNING, more) <= POLICY.maximum
    if more - less >= POLICY.step_seconds and _value(RUNNING, less) < POLICY.maximum:
        assert _value(RUNNING, less) < _value(RUNNING, more)


@examples(300)
@given(_EVENTS)
def test_no_boost_changes_more_often_than_the_hold_time(events: list[tuple[float, str, float | None]]) -> None:
    """Whatever happens: checkpoints, new runs, a lost rank 0 and another leader."""
    boost, exposure, now, changes = FRESH, RUNNING, T0, list[float]()
    for seconds, event, took in events:
        now += seconds
        before = boost.value
        match event:
            case "save":
                exposure = replace(exposure, save=Save(run=exposure.run, at=now, seconds=took))
            case "run":
                exposure = replace(exposure, run=exposure.run + 1)
            case "lost":
                exposure = replace(exposure, attended=not exposure.attended)
            case "leader":
                exposure = replace(exposure, save=None)
                boost = next_boost(boost.value, exposure, POLICY, now)
        boost = next_boost(boost, exposure, POLICY, now)
        if boost.value != before:
            changes.append(now)
        assert 0 <= boost.value <= POLICY.maximum
    assert all(later - earlier >= POLICY.hold_seconds for earlier, later in pairwise(changes))


def test_a_checkpoint_takes_the_boost_back_after_the_hold_time() -> None:
    raised = next_boost(FRESH, RUNNING, POLICY, T0 + 1200)
    assert raised.value == 2
    saved = _saved(1250.0)
    assert next_boost(raised, saved, POLICY, T0 + 1499) == raised
    assert next_boost(raised, saved, POLICY, T0 + 1500).value == 0


def test_a_new_run_has_nothing_to_lose() -> None:
    raised = next_boost(FRESH, RUNNING, POLICY, T0 + 1200)
    started = next_boost(raised, replace(RUNNING, run=2), POLICY, T0 + 1500)
    assert (started.value, started.began) == (0, T0 + 1500)


def test_a_new_leader_counts_on_from_the_boost_that_is_written() -> None:
    """It knows of no checkpoint until the next one, and changes nothing before the hold time is over."""
    found = next_boost(3, RUNNING, POLICY, T0)
    assert next_boost(found, replace(RUNNING, attended=False), POLICY, T0 + 299).value == 3
    assert next_boost(found, RUNNING, POLICY, T0 + 599).value == 3
    assert next_boost(found, RUNNING, POLICY, T0 + 600).value == 4
