"""Tracking turns the answers of a source into announcements and withdrawals."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node_agent.notices import (
    AnnouncementState,
    Answer,
    Clear,
    Noticed,
    NoticeReport,
    NoticeSubject,
    NoticeSubjectKind,
    NoticeUrgency,
    PollResult,
    ReportedSource,
    SourceName,
)
from node_agent.poller import TrackedSource, UnknownAnswer, step

NODE = NoticeSubject(NoticeSubjectKind.NODE, "n1", "uid-1")
ANNOUNCED = datetime(2026, 1, 5, 18, 2, tzinfo=UTC)
START = TrackedSource(ReportedSource(SourceName("s"), PollResult.UNKNOWN, detail="not polled yet"))
CLEAR, UNKNOWN = Clear(), UnknownAnswer("timed out")
ACTIVE, WITHDRAWN = AnnouncementState.ACTIVE, AnnouncementState.WITHDRAWN


def noticed(seconds_left: float | None = 100.0, shift: float = 0.0, message: str = "m") -> Noticed:
    return Noticed(ANNOUNCED + timedelta(seconds=shift), seconds_left, message)


def after(answers: Sequence[Answer | UnknownAnswer], now: float = 0.0) -> tuple[TrackedSource, list[NoticeReport]]:
    """The state and all reports after a sequence of answers at one instant."""
    state, reports = START, []
    for answer in answers:
        state, report = step(state, answer, NODE, now)
        if report:
            reports.append(report)
    return state, reports


NOTICE = noticed()


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([], []),
        ([NOTICE], [(1, ACTIVE)]),
        ([NOTICE, NOTICE, NOTICE], [(1, ACTIVE)]),
        ([CLEAR, CLEAR], []),
        ([CLEAR, CLEAR, CLEAR], [(1, WITHDRAWN)]),
        ([CLEAR] * 9, [(1, WITHDRAWN)]),
        ([NOTICE, CLEAR, CLEAR], [(1, ACTIVE)]),
        ([NOTICE, CLEAR, CLEAR, CLEAR], [(1, ACTIVE), (2, WITHDRAWN)]),
        ([NOTICE, CLEAR, CLEAR, NOTICE, CLEAR, CLEAR], [(1, ACTIVE)]),
        ([NOTICE, CLEAR, CLEAR, UNKNOWN, CLEAR, CLEAR], [(1, ACTIVE)]),
        ([NOTICE, CLEAR, CLEAR, UNKNOWN, CLEAR, CLEAR, CLEAR], [(1, ACTIVE), (2, WITHDRAWN)]),
        ([NOTICE] + [UNKNOWN] * 9, [(1, ACTIVE)]),
        ([NOTICE, UNKNOWN, NOTICE], [(1, ACTIVE)]),
        ([UNKNOWN] * 9, []),
        ([CLEAR, CLEAR, CLEAR, NOTICE], [(1, WITHDRAWN), (2, ACTIVE)]),
        (
            [NOTICE, CLEAR, CLEAR, CLEAR, NOTICE, CLEAR, CLEAR, CLEAR],
            [(1, ACTIVE), (2, WITHDRAWN), (3, ACTIVE), (4, WITHDRAWN)],
        ),
    ],
)
def test_reports(answers: list[Answer | UnknownAnswer], expected: list[tuple[int, AnnouncementState]]) -> None:
    """Announced at once; withdrawn by three clear answers in a row, also by an agent that announced nothing."""
    assert [(report.revision, report.announcement) for report in after(answers)[1]] == expected


@pytest.mark.parametrize(
    ("answer", "changes"),
    [
        (noticed(shift=1.0, seconds_left=101.0), False),
        (noticed(shift=2.0, seconds_left=102.0), True),
        (noticed(shift=-2.0, seconds_left=98.0), True),
        # The same deadline, estimated within the whole seconds of a Date.
        (noticed(seconds_left=101.9), False),
        (noticed(seconds_left=98.1), False),
        # The same deadline, but the clock that was used before was wrong.
        (noticed(seconds_left=160.0), True),
        (noticed(seconds_left=None), True),
        (Noticed(None, 100.0, "m"), True),
        (noticed(message="other"), True),
    ],
)
def test_what_is_news(answer: Noticed, changes: bool) -> None:  # noqa: FBT001 - a table's column
    _, reports = after([NOTICE, answer])
    assert [report.revision for report in reports] == ([1, 2] if changes else [1])


def test_a_slow_drift_adds_up() -> None:
    """Each answer is compared with what was last reported, not with the answer before."""
    _, reports = after([noticed(100.0 + shift, shift=shift) for shift in (0.0, 0.6, 1.2, 1.8, 2.4)])
    assert [report.announced for report in reports] == [
        ANNOUNCED + timedelta(seconds=shift) for shift in (0.0, 1.2, 2.4)
    ]


def test_a_notice_keeps_its_instant_between_polls() -> None:
    state, first = step(START, noticed(seconds_left=100.0), NODE, 1000.0)
    _, second = step(state, noticed(seconds_left=70.0), NODE, 1030.0)
    assert first is not None
    assert first.deadline == 1100.0
    assert second is None


USUAL = Noticed(None, 30.0, "m")
"""A source that names no instant, but has a usual lead."""


def polled(*answers: Answer) -> list[NoticeReport]:
    state, reports = START, []
    for now, answer in enumerate(answers):
        state, report = step(state, answer, NODE, float(now))
        if report:
            reports.append(report)
    return reports


def test_a_usual_lead_is_reported_once() -> None:
    """It is said again with every poll, and counts from the first: the deadline is fixed, and comes."""
    (report,) = polled(*[USUAL] * 60)
    assert report.deadline == 30.0


def test_a_usual_lead_counts_anew_after_a_withdrawal() -> None:
    reports = polled(USUAL, USUAL, *[CLEAR] * 3, USUAL, USUAL)
    assert [(report.revision, report.announcement) for report in reports] == [(1, ACTIVE), (2, WITHDRAWN), (3, ACTIVE)]
    assert reports[-1].deadline == 35.0


def test_without_an_instant_a_deadline_only_comes_nearer() -> None:
    """Seconds that count down are no news, fewer of them are, and a usual lead where there was none."""
    (counted,) = polled(*[Noticed(None, 30.0 - second, "m") for second in range(40)])
    assert counted.deadline == 30.0
    assert [report.deadline for report in polled(USUAL, Noticed(None, 10.0, "m"), USUAL)] == [30.0, 11.0]
    assert [report.deadline for report in polled(Noticed(None, None, "m"), USUAL, USUAL)] == [None, 31.0]


def test_an_instant_outranks_a_usual_lead() -> None:
    """A source that names one at last is believed, also where it is later."""
    assert [report.deadline for report in polled(USUAL, noticed(100.0))] == [30.0, 101.0]


HINT = Noticed(None, None, "risk", NoticeUrgency.HINT, cancellable=True)
PLANNED = Noticed(ANNOUNCED, 5000.0, "maintenance", NoticeUrgency.SCHEDULED, cancellable=True)


def classes(*answers: Answer | UnknownAnswer) -> list[NoticeUrgency | AnnouncementState]:
    """What each report says: its class, or that it withdraws."""
    reports = after(answers)[1]
    return [each.notice_class if each.announcement is ACTIVE else each.announcement for each in reports]


def test_a_report_carries_the_class_of_its_notice() -> None:
    _, (hint,) = after([HINT])
    assert (hint.notice_class, hint.cancellable, hint.deadline) == (NoticeUrgency.HINT, True, None)
    _, (sudden,) = after([NOTICE])
    assert (sudden.notice_class, sudden.cancellable) == (NoticeUrgency.SUDDEN, False)


def test_a_more_urgent_class_is_reported_at_once() -> None:
    assert classes(HINT, PLANNED, NOTICE) == [NoticeUrgency.HINT, NoticeUrgency.SCHEDULED, NoticeUrgency.SUDDEN]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([HINT, HINT], []),
        ([HINT, HINT, HINT], [NoticeUrgency.HINT]),
        ([HINT, HINT, UNKNOWN, HINT, HINT], []),
        ([HINT, HINT, NOTICE, HINT, HINT], []),
        ([CLEAR, CLEAR, HINT], [NoticeUrgency.HINT]),
        ([HINT, CLEAR, CLEAR], []),
        ([HINT, CLEAR, CLEAR, CLEAR], [WITHDRAWN]),
        ([PLANNED, HINT, PLANNED], [NoticeUrgency.SCHEDULED]),
    ],
)
def test_a_less_urgent_class_counts_the_third_time(
    answers: list[Answer | UnknownAnswer], expected: list[NoticeUrgency | AnnouncementState]
) -> None:
    """A single answer that takes a sudden reclaim back may be an error, as a single clear one may."""
    assert classes(NOTICE, *answers) == [NoticeUrgency.SUDDEN, *expected]


def test_a_usual_lead_counts_anew_for_another_class() -> None:
    later = Noticed(None, 3600.0, "m", NoticeUrgency.SCHEDULED)
    assert [report.deadline for report in polled(USUAL, later, later, later)] == [30.0, 3603.0]


def test_the_status_follows_the_last_answer() -> None:
    """UnknownAnswer keeps the instant of the last good poll and says why it is unknown."""
    fresh = after([])[0].status
    assert (fresh.state, fresh.last_good, fresh.detail) == (PollResult.UNKNOWN, None, "not polled yet")
    assert after([CLEAR], now=5.0)[0].status.state is PollResult.CLEAR
    state = after([NOTICE], now=5.0)[0]
    assert state.status.state is PollResult.NOTICED
    status = step(state, UNKNOWN, NODE, 9.0)[0].status
    assert (status.state, status.last_good, status.detail) == (PollResult.UNKNOWN, 5.0, "timed out")
    assert step(state, CLEAR, NODE, 9.0)[0].status.detail == ""


def test_nothing_is_reported_about_an_unknown_node() -> None:
    """Without the node's uid there is no notice to speak of, but nothing is forgotten either."""
    state, report = step(START, NOTICE, None, 0.0)
    assert report is None
    _, report = step(state, NOTICE, NODE, 1.0)
    assert report is not None
    assert report.id == "s/uid-1"


@given(st.lists(st.sampled_from([CLEAR, UNKNOWN, NOTICE, noticed(50.0, shift=-50.0)]), max_size=30))
def test_reports_are_true(answers: list[Answer | UnknownAnswer]) -> None:
    """Whatever the answers: revisions count up, actives follow notices, withdrawals follow exactly three clears."""
    state, revision = START, 0
    for index, answer in enumerate(answers):
        state, report = step(state, answer, NODE, 0.0)
        if report is None:
            continue
        assert report.revision == revision + 1
        revision = report.revision
        if report.announcement is ACTIVE:
            assert isinstance(answer, Noticed)
        else:
            assert answers[max(0, index - 2) : index + 1] == [CLEAR] * 3
    announced = state.reported is not None and state.reported.announcement is ACTIVE
    last_good = [answer for answer in answers if answer is not UNKNOWN][-1:]
    if last_good and isinstance(last_good[0], Noticed):
        assert announced
