"""The judge's demands besides training steps, on made-up events: each met and each violated."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import pytest

from simulator.events import JobEvent, JobEventKind
from simulator.judge import Expectations, Failure, judge
from simulator.verdict import VerdictBounds
from tests.simulator.judge_events import (
    added,
    at,
    end,
    excluded,
    flag,
    gone,
    notice,
    over,
    ring,
    saved,
    step,
    withdrawn,
)

DISTURBED = Expectations(steps=4, digest="d4", min_workers=2, max_workers=4)
EXPECTED = replace(DISTURBED, bounds=VerdictBounds(act=5.0, join=15.0, resume=15.0))
ABOUT_STEPS = {Failure.UNFINISHED, Failure.STEP_LOST, Failure.STEP_SKIPPED}

Events: TypeAlias = "JobEvent | Sequence[Events]"
"""Events, arranged as a test likes."""
FULL = (added(-9, "abcd"), ring(0, "abcd"))


def clock(t: float) -> JobEvent:
    """Something that happens elsewhere: the judge learns from any event how late it is."""
    return at(t, JobEventKind.SCENARIO_ENDED)


def flat(events: Events) -> Iterator[JobEvent]:
    if isinstance(events, JobEvent):
        yield events
    else:
        for one in events:
            yield from flat(one)


def found(*events: Events, expected: Expectations = EXPECTED) -> set[Failure]:
    """Which demands were missed by these events, in the order of their times."""
    verdict = judge(sorted(flat(events), key=lambda event: event.t), expected)
    return {finding.failure for finding in verdict.failures} - ABOUT_STEPS


def test_a_group_that_is_excluded_at_once_meets_all_demands() -> None:
    """Each member is off the list and out of the ring before it goes."""
    group = (
        notice(1, "c"),
        notice(1.1, "d"),
        excluded(2.5, "cd"),
        ring(3, "ab", epoch=2),
        gone(11, "c"),
        gone(11, "d"),
    )
    assert found(FULL, group, clock(40)) == set()


@pytest.mark.parametrize("expected", [EXPECTED, DISTURBED])
def test_each_member_of_a_group_has_to_be_out_of_the_ring_when_it_goes(expected: Expectations) -> None:
    """One change for one of two is not enough, however well the launcher survives the other's end."""
    half = (notice(1, "c"), notice(1.1, "d"), excluded(2.5, "c"), ring(3, "abd", epoch=2), gone(11, "c"), gone(11, "d"))
    assert Failure.NOT_EXCLUDED in found(FULL, half, expected=expected)


def test_a_notice_that_nobody_acts_upon_is_found_before_its_host_goes() -> None:
    """Five seconds are the bound; a change that comes later is late whatever is left of the lead."""
    assert found(FULL, notice(1, "d"), excluded(5.9, "d"), ring(6.5, "abc", epoch=2), clock(30)) == set()
    assert found(FULL, notice(1, "d"), excluded(6.1, "d"), ring(6.5, "abc", epoch=2)) == {Failure.NOT_EXCLUDED}


def test_a_withdrawal_takes_the_demand_back() -> None:
    assert found(FULL, notice(1, "d"), withdrawn(4, "d"), clock(10)) == set()


def test_time_is_not_demanded_where_the_product_is_disturbed() -> None:
    """A supervisor that was killed acts when it is back: in time is before the host goes."""
    late = (notice(1, "d"), excluded(30, "d"), ring(31, "abc", epoch=2), gone(60, "d"))
    assert found(FULL, late, expected=DISTURBED) == set()


def test_an_unannounced_end_demands_nothing() -> None:
    assert found(FULL, gone(5, "d", announced=False), ring(6, "abc", epoch=2), clock(30)) == set()


BELOW = (notice(1, "b"), notice(1, "c"), notice(1, "d"))
SUSPENDED = (flag(2), saved(2.1, 2), over(3))
TAKEN = (gone(9, "b"), gone(9, "c"), gone(9, "d"))


def test_a_stop_that_is_flagged_saved_and_suspended_in_time_meets_all_demands() -> None:
    assert found(FULL, BELOW, SUSPENDED, TAKEN, clock(60)) == set()


def test_a_job_below_its_minimum_has_to_stop() -> None:
    assert found(FULL, BELOW, excluded(2, "bcd"), clock(7)) == {Failure.NOT_STOPPED}
    assert Failure.NOT_EXCLUDED in found(FULL, BELOW, excluded(2, "bcd"), TAKEN)


def test_a_stop_without_a_checkpoint_is_found() -> None:
    events = (saved(0.5, 1), flag(2), over(3))
    assert found(FULL, BELOW, events, TAKEN) == {Failure.NOT_SAVED}


def test_a_job_that_is_stopped_but_not_suspended_is_found_when_its_hosts_go() -> None:
    events = (BELOW, flag(2), saved(5, 2), TAKEN, over(9.5))
    assert found(FULL, *events) == {Failure.NOT_SUSPENDED}
    assert found(FULL, *events, expected=DISTURBED) == set()


def test_a_job_that_has_saved_is_suspended_soon() -> None:
    assert found(FULL, BELOW, flag(2), saved(2.1, 2), over(8)) == {Failure.NOT_SUSPENDED}
    assert found(FULL, BELOW, flag(2), saved(2.1, 2), over(7)) == set()


RESUMED = (added(20, "xy"), ring(30, "axy", run=2), step(31, 3, run=2))


def test_a_job_resumes_when_there_is_room() -> None:
    """Fifteen seconds after enough hosts are free; as long as there are too few, nothing is demanded."""
    assert found(FULL, BELOW, SUSPENDED, TAKEN, RESUMED) == set()
    late = (added(20, "xy"), ring(36, "axy", run=2))
    assert found(FULL, BELOW, SUSPENDED, TAKEN, late) == {Failure.NOT_RESUMED}
    assert found(FULL, BELOW, SUSPENDED, TAKEN, added(20, "x"), notice(20, "x"), clock(90)) == set()


def test_a_job_that_has_finished_resumes_no_more() -> None:
    assert found(FULL, end(2), over(3, code=0), clock(60)) == set()


def test_no_ring_is_formed_with_a_host_that_has_long_had_a_notice() -> None:
    """A notice that came while the run began is excused for as long as a notice may take."""
    known = (added(20, "xy"), notice(21, "x"))
    assert Failure.NOTICED_HOST_USED in found(FULL, BELOW, SUSPENDED, TAKEN, known, ring(30, "axy", run=2))
    fresh = (added(20, "xy"), notice(26, "x"))
    assert found(FULL, BELOW, SUSPENDED, TAKEN, fresh, ring(30, "axy", run=2)) == set()


def test_a_host_is_not_listed_again_while_it_has_its_notice() -> None:
    back = (notice(1, "d"), excluded(2, "d"), ring(3, "abc", epoch=2), excluded(4, ""), excluded(5, "d"))
    assert found(FULL, back, gone(11, "d")) == {Failure.GROUP_SPLIT, Failure.NOTICED_HOST_USED}


def test_a_worker_that_is_lost_to_its_ring_is_found() -> None:
    """Not one of a run that is being stopped, whose hosts may go, nor one that the product could not have saved."""
    lost = at(3, JobEventKind.RING_BROKEN, run=1, epoch=1, host="d")
    assert Failure.RING_BROKEN in found(FULL, notice(1, "d"), excluded(2, "d"), lost)
    assert Failure.RING_BROKEN not in found(FULL, BELOW, flag(2), saved(2.1, 2), lost)
    assert Failure.RING_BROKEN not in found(FULL, lost, expected=DISTURBED)


def test_a_withdrawn_host_comes_back() -> None:
    away = (notice(1, "d"), excluded(2, "d"), ring(3, "abc", epoch=2), withdrawn(5, "d"))
    assert found(FULL, away, excluded(9, ""), ring(12, "abcd", epoch=3), clock(60)) == set()
    assert found(FULL, away, clock(9.5)) == set()
    assert found(FULL, away, clock(10.5)) == {Failure.NOT_TAKEN_BACK}
    assert found(FULL, away, excluded(9, ""), clock(21)) == {Failure.NOT_TAKEN_BACK}


def test_a_full_ring_has_no_room_for_another() -> None:
    assert found(added(-9, "abcde"), ring(0, "abcd"), clock(60)) == set()
    assert found(added(-9, "abcde"), ring(0, "abc"), clock(60)) == {Failure.NOT_TAKEN_BACK}


def test_a_host_that_the_launcher_has_given_up_is_not_missed() -> None:
    failed = at(1, JobEventKind.HOST_BLACKLISTED, run=1, host="d")
    assert found(FULL, failed, ring(2, "abc", epoch=2), clock(60)) == set()


@pytest.mark.parametrize(
    "reason",
    [
        pytest.param(notice(1, "d"), id="a notice"),
        pytest.param((notice(0.5, "d"), withdrawn(0.8, "d")), id="a notice a moment ago"),
        pytest.param(gone(1, "d", announced=False), id="gone"),
        pytest.param(at(1, JobEventKind.HOST_BLACKLISTED, run=1, host="d"), id="failed"),
        pytest.param(flag(1), id="the job is stopping"),
    ],
)
def test_an_exclusion_has_a_reason(reason: Events) -> None:
    """Without one it is false, be it beside a host that has one."""
    assert Failure.FALSE_EXCLUSION not in found(FULL, reason, excluded(2, "d"))
    assert Failure.FALSE_EXCLUSION in found(FULL, excluded(2, "d"))
    assert Failure.FALSE_EXCLUSION in found(FULL, notice(1, "d"), excluded(2, "cd"))


def test_a_host_outside_of_the_ring_may_be_withheld() -> None:
    assert found(added(-9, "abcde"), ring(0, "abcd"), excluded(1, "e")) == set()


def test_two_runs_at_a_time_are_found() -> None:
    """A step of the earlier run after the later one has its ring, or a launcher that has not ended by then."""
    assert Failure.TWO_RUNS in found(FULL, over(4), ring(5, "abcd", run=2), step(6, 3, run=1))
    in_order = (FULL, step(4, 3, run=1), over(4.5), ring(5, "abcd", run=2), step(6, 4, run=2))
    assert Failure.TWO_RUNS not in found(*in_order)
    beside = (FULL, step(4, 3, run=1), ring(5, "abcd", run=2), over(5.5))
    assert Failure.TWO_RUNS in found(*beside)
    assert Failure.TWO_RUNS not in found(*beside, expected=DISTURBED)


def test_a_group_changes_the_exclusions_once() -> None:
    split = (notice(1, "c"), notice(1.1, "d"), excluded(2, "c"), excluded(3, "cd"), ring(4, "ab", epoch=2))
    assert found(FULL, split) == {Failure.GROUP_SPLIT}
    assert found(FULL, split, expected=DISTURBED) == set()


AGREED = replace(DISTURBED, agreed=True)
STOPPED = (added(-9, "ab"), ring(0, "ab"), notice(1, "b"), flag(2))


@pytest.mark.parametrize(
    ("saves", "failures"),
    [
        ([saved(3, 2), saved(3, 2, rank=1)], set()),
        ([saved(3, 2), saved(3, 3, rank=1)], {Failure.NOT_AGREED}),
        ([saved(3, 2)], {Failure.NOT_AGREED}),
        ([saved(3, 2, rank=1)], {Failure.NOT_AGREED, Failure.NOT_SAVED}),
        ([], {Failure.NOT_AGREED, Failure.NOT_SAVED}),
    ],
)
def test_all_ranks_of_an_agreed_stop_save_at_one_step(saves: list[JobEvent], failures: set[Failure]) -> None:
    """The save of another rank is none of rank 0."""
    assert found(STOPPED, saves, over(4), expected=AGREED) == failures


def test_a_rank_that_saves_alone_is_enough_without_an_agreement() -> None:
    assert found(STOPPED, saved(3, 2), over(4), expected=DISTURBED) == set()


PAIRS = replace(EXPECTED, worker_multiple=2, max_workers=6)
FIVE_OF_SIX = (added(-9, "abcdef"), ring(0, "abcdef"), notice(1, "f"), clock(20))


@pytest.mark.parametrize(
    ("events", "failures"),
    [
        ((excluded(2, "ef"), ring(3, "abcd", epoch=2)), set()),
        ((excluded(2, "f"), ring(3, "abcde", epoch=2)), {Failure.NOT_A_MULTIPLE}),
        ((excluded(2, "def"), ring(3, "ab", epoch=2)), {Failure.FALSE_EXCLUSION, Failure.NOT_TAKEN_BACK}),
    ],
)
def test_a_ring_is_a_multiple_and_leaves_out_no_more_hosts_than_that_takes(
    events: Events, failures: set[Failure]
) -> None:
    """A host without a notice may be excluded as the one that is too many, and stay so."""
    assert found(FIVE_OF_SIX, events, gone(21, "f"), expected=PAIRS) - {Failure.RING_BROKEN} == failures
