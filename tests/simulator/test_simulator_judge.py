"""The judge on made-up events: a good run passes, and every single defect is found."""

from collections.abc import Sequence

import pytest

from simulator.events import DamagedLogError, JobEvent, JobEventKind
from simulator.judge import Expectations, Failure, GroupMeaning, Latency, ReplayVerdict, judge
from tests.simulator.judge_events import at, end, excluded, flag, notice, ring, saved, step

EXPECTED = Expectations(steps=4, digest="d4", min_workers=2)


def judged(*events: JobEvent | Sequence[JobEvent]) -> ReplayVerdict:
    """The verdict on these events, in the order of their times."""
    flat = [event for one in events for event in ([one] if isinstance(one, JobEvent) else one)]
    return judge(sorted(flat, key=lambda event: event.t), EXPECTED)


def failures(*events: JobEvent | Sequence[JobEvent]) -> list[Failure]:
    return [finding.failure for finding in judged(*events).failures]


SHRINK = (notice(0.5, "c"), excluded(1.5, "c"), ring(2.2, "ab", epoch=2))
GOOD = (ring(0, "abc"), step(1, 1), step(2, 2), step(3, 3, epoch=2), step(4, 4, epoch=2), end(5))
STOPPED = (ring(0, "ab"), step(1, 1), step(2, 2), notice(2.5, "b"), flag(2.8), saved(2.9, 2))
RESUMED = (ring(10, "ac", run=2), step(11, 3, run=2), step(12, 4, run=2), end(13, run=2))


def test_a_good_run_passes() -> None:
    """A shrink in order has no failures, and its figures say what happened."""
    verdict = judged(
        *GOOD, *SHRINK, at(0.8, JobEventKind.NOTICE_SEEN, run=1, host="c", rank=2, notice="n", subject="c")
    )
    assert verdict.ok
    figures = verdict.figures
    assert (figures.notices, len(figures.groups), figures.changes_per_group) == (1, 1, (1,))
    assert figures.notice_to_process.p50 == pytest.approx(0.3)
    assert figures.notice_to_host_list.p99 == pytest.approx(1.0)
    assert (figures.steps_applied, figures.suspensions, figures.resumes, figures.parameters_equal) == (4, 0, 0, True)


def test_a_justified_stop_and_resume_pass() -> None:
    """A STOP below the minimum, its checkpoint and a run that goes on from there have no failures."""
    verdict = judged(*STOPPED, *RESUMED)
    assert verdict.ok
    assert (verdict.figures.suspensions, verdict.figures.resumes) == (1, 1)
    assert verdict.figures.notice_to_flag.p50 == pytest.approx(0.3)


def test_a_step_applied_in_two_rings_is_lost_once() -> None:
    verdict = judged(*GOOD, *SHRINK, step(3.5, 2, epoch=2))
    assert [finding.failure for finding in verdict.failures] == [Failure.STEP_LOST]
    assert verdict.figures.steps_lost == 1
    assert judged(*STOPPED, *RESUMED, step(10.5, 1, run=2), step(10.6, 2, run=2)).figures.steps_lost == 2


def test_a_step_that_is_missing_was_skipped() -> None:
    assert failures(ring(0, "abc"), step(1, 1), step(2, 2), step(4, 4), end(5)) == [Failure.STEP_SKIPPED]


def test_ranks_that_disagree_are_found() -> None:
    """Two digests of one step mean that the parameters have parted, even where the end looks right."""
    parted = step(3, 3, digest="x")[1:]
    assert failures(ring(0, "ab"), step(1, 1), step(2, 2), step(3, 3), parted, step(4, 4), end(5)) == [
        Failure.RANKS_DIFFER
    ]


def test_other_parameters_at_the_end_are_found() -> None:
    assert failures(*GOOD, end(5.1, digest="x")) == [Failure.PARAMETERS_DIFFER]
    assert not judged(*GOOD, end(5.1, digest="x")).figures.parameters_equal


def test_a_job_without_an_end_is_unfinished() -> None:
    """No last word, or one at an earlier step, is a failure; so is a log of nothing."""
    assert failures(*GOOD[:-1]) == [Failure.UNFINISHED]
    assert Failure.UNFINISHED in failures(*GOOD[:-1], end(5, number=3))
    assert failures() == [Failure.UNFINISHED]
    assert not judged().figures.parameters_equal


@pytest.mark.parametrize(
    "truth",
    [
        pytest.param((), id="no notice at all"),
        pytest.param((notice(2.6, "c"),), id="enough remain"),
        pytest.param((notice(2.6, "z"), notice(2.6, "y")), id="notices of hosts that are not in the ring"),
        pytest.param((notice(2.9, "b"), notice(2.9, "c")), id="notices that come later"),
        pytest.param(
            (notice(-9, "b"), notice(-9, "c"), at(-8, JobEventKind.NOTICE_WITHDRAWN, node="b")), id="withdrawn long ago"
        ),
        pytest.param(
            (
                at(-9, JobEventKind.NODE_GONE, node="b", announced=False),
                at(-8, JobEventKind.NODE_ADDED, node="b"),
                notice(2.6, "c"),
            ),
            id="gone and back",
        ),
    ],
)
def test_a_stop_without_a_reason_is_false(truth: Sequence[JobEvent]) -> None:
    assert Failure.FALSE_STOP in failures(ring(0, "abc"), truth, flag(2.8))


@pytest.mark.parametrize(
    "truth",
    [
        pytest.param((notice(2.6, "b"), notice(2.7, "c")), id="two announced"),
        pytest.param(
            (notice(2.6, "b"), at(2.7, JobEventKind.NODE_GONE, node="c", announced=False)), id="announced and gone"
        ),
        pytest.param(
            (notice(0.5, "b"), notice(1, "c"), at(2, JobEventKind.NOTICE_WITHDRAWN, node="b")), id="just withdrawn"
        ),
        pytest.param(
            (notice(2, "b"), at(2.5, JobEventKind.RING_BROKEN, run=1, epoch=1, host="c")), id="one worker dead"
        ),
        pytest.param((notice(1, "b"), notice(1.1, "c"), notice(2, "b", "later")), id="deadline updated"),
    ],
)
def test_a_stop_with_a_reason_is_not_false(truth: Sequence[JobEvent]) -> None:
    assert Failure.FALSE_STOP not in failures(ring(0, "abc"), truth, flag(2.8))


def test_a_stop_is_judged_by_the_last_ring() -> None:
    assert Failure.FALSE_STOP in failures(ring(0, "abc"), notice(1, "b"), flag(2))
    assert Failure.FALSE_STOP not in failures(ring(0, "abc"), ring(0.5, "ab", epoch=2), notice(1, "b"), flag(2))


def test_one_decision_is_judged_once() -> None:
    """Ranks that hear of a STOP after the first are told of the same decision, right or wrong."""
    late = (at(4, JobEventKind.NOTICE_WITHDRAWN, node="b"), flag(30, rank=1, host="b"))
    assert judged(*STOPPED, *late).figures.false_stops == 0
    assert judged(ring(0, "abc"), flag(1), flag(2, rank=1, host="b")).figures.false_stops == 1


def test_a_leave_needs_a_notice_of_its_own_host() -> None:
    assert judged(ring(0, "abc"), notice(1, "c"), flag(2, "LEAVE", host="c", rank=2)).figures.false_stops == 0
    assert judged(ring(0, "abc"), notice(1, "c"), flag(2, "LEAVE", host="b", rank=1)).figures.false_stops == 1


def test_a_flag_without_a_directive_is_false() -> None:
    """A flag that is down while the directive says RUN has no justification."""
    assert judged(ring(0, "abc"), notice(1, "a"), flag(2, "RUN")).figures.false_stops == 1


def test_a_step_beyond_the_stop_is_found() -> None:
    """Whoever applies a step after the checkpoint of a STOP, in that run, has wasted it."""
    verdict = judged(*STOPPED, step(3, 3), *RESUMED)
    assert verdict.figures.steps_after_stop == 1
    assert {finding.failure for finding in verdict.failures} == {Failure.STEP_AFTER_STOP, Failure.STEP_LOST}


def test_an_earlier_checkpoint_is_not_the_stops() -> None:
    assert judged(ring(0, "ab"), step(1, 1), saved(1.5, 1), step(2, 2), *STOPPED[3:], *RESUMED).ok


def test_a_checkpoint_without_a_stop_binds_nobody() -> None:
    assert judged(*GOOD, saved(2.5, 2)).ok


def test_a_stop_needs_a_ring_of_its_own_run() -> None:
    """What was so in an earlier run justifies nothing in the next one."""
    assert judged(*STOPPED, flag(9, run=2), *RESUMED).figures.false_stops == 1


def test_changes_of_exclusions_are_counted_by_group() -> None:
    """A group that is excluded in two goes counts two; removals and hosts without a notice count nothing."""
    events = (ring(0, "abcde"), notice(1, "c"), notice(1.1, "d"))
    once = judged(*events, excluded(0.5, "z"), excluded(2, "zcd"), excluded(5, "cd"), excluded(6, ""))
    assert once.figures.changes_per_group == (1,)
    assert once.figures.notice_to_host_list == Latency(2, 1.0, 1.0, 1.0)
    twice = judged(*events, excluded(2, "c"), excluded(3, "cd"))
    assert twice.figures.changes_per_group == (2,)
    assert twice.figures.notice_to_host_list.p99 == pytest.approx(2.0)


def test_a_host_that_was_withheld_before_its_notice_counts_nothing() -> None:
    figures = judged(ring(0, "abcd"), excluded(0.5, "d"), notice(1, "d"), excluded(2, "cd")).figures
    assert figures.changes_per_group == ()
    assert figures.notice_to_host_list.count == 0


def test_a_host_that_the_job_does_not_use_asks_for_no_change() -> None:
    """A spare host is on no list; together with one of the ring it belongs to a group that means a change."""
    spare, both = notice(1, "x", "spare"), (notice(2, "y", "both"), notice(2, "c", "both"))
    figures = judged(ring(0, "abc"), spare, both, excluded(3, "cy")).figures
    assert [group.meaning for group in figures.groups] == [GroupMeaning.IDLE, GroupMeaning.SHRINK]
    assert figures.changes_per_group == (1,)


def test_a_group_that_a_stop_overtakes_asks_for_no_change() -> None:
    """Its window was still open when the next group meant STOP: the list is frozen, unless it had changed before."""
    begun, certain = (ring(0, "abcd"), notice(1, "d", "first")), (notice(2, "b"), notice(2, "c"), flag(2.5))
    assert judged(*begun, *certain).figures.changes_per_group == ()
    assert judged(*begun, excluded(1.5, "d"), *certain).figures.changes_per_group == (1,)


def test_a_stop_excuses_no_group_that_has_gone() -> None:
    """A host that went while it was on the list was missed, whatever came afterwards."""
    gone = at(1.5, JobEventKind.NODE_GONE, node="d", announced=True)
    later = (notice(2, "b"), notice(2, "c"), flag(2.5))
    assert judged(ring(0, "abcd"), notice(1, "d", "first"), gone, *later).figures.changes_per_group == (0,)


def test_a_group_that_is_taken_back_before_the_change_asks_for_none() -> None:
    """A false alarm of a second need not reach the list; one that did is counted."""
    back = at(2, JobEventKind.NOTICE_WITHDRAWN, node="c")
    assert judged(ring(0, "abc"), notice(1, "c"), back).figures.changes_per_group == ()
    assert judged(ring(0, "abc"), notice(1, "c"), excluded(1.5, "c"), back).figures.changes_per_group == (1,)


def test_groups_that_mean_stop_are_not_counted() -> None:
    verdict = judged(*STOPPED, excluded(3, "b"), notice(4, "x", "idle"), excluded(5, "bx"), *RESUMED)
    assert [group.meaning for group in verdict.figures.groups] == [GroupMeaning.STOP, GroupMeaning.IDLE]
    assert verdict.figures.changes_per_group == ()
    assert verdict.figures.notice_to_host_list.count == 0


def test_a_host_that_is_announced_again_starts_a_new_group() -> None:
    """Withdrawn and shown again under the same name are two episodes, with a change each."""
    again = (at(3, JobEventKind.NOTICE_WITHDRAWN, node="c"), excluded(6, ""), notice(7, "c"), excluded(8, "c"))
    figures = judged(ring(0, "abc"), notice(1, "c"), excluded(2, "c"), *again).figures
    assert (figures.notices, figures.changes_per_group) == (2, (1, 1))


def test_a_restart_after_a_failure_is_no_resume() -> None:
    figures = judged(ring(0, "ab"), step(1, 1), ring(5, "ab", run=2)).figures
    assert (figures.suspensions, figures.resumes) == (0, 0)


def test_percentiles_are_values_that_occurred() -> None:
    assert Latency.of([float(n) for n in range(100, 0, -1)]) == Latency(100, 50.0, 99.0, 100.0)
    assert Latency.of([3.0]) == Latency(1, 3.0, 3.0, 3.0)
    assert Latency.of([]) == Latency(0, None, None, None)


def test_a_damaged_event_is_no_verdict() -> None:
    with pytest.raises(DamagedLogError, match="digest"):
        judged(at(1, JobEventKind.STEP_APPLIED, run=1, epoch=1, step=1, rank=0, host="a"))
