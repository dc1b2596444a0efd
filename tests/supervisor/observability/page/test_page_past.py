"""Notices of the past: when each came, how it ended, and what is not known of that."""

from dataclasses import replace

from supervisor.domain.notice import NoticeState
from supervisor.observability.page.past import reclaims_of
from supervisor.observability.views import HistoryEntryView
from tests.supervisor.decide.decide_builders import notice


def _entry(at: float, what: str = "noticed") -> HistoryEntryView:
    return HistoryEntryView(at=at, subject="node/n1", what=what, text="", source="metadata")


def test_a_notice_that_stands_goes_on() -> None:
    [found] = reclaims_of([_entry(100.0)], [notice(1, seen=100.0)])
    assert (found.end, found.is_lost) == ("", False)


def test_the_end_of_a_notice_that_the_record_does_not_have_is_the_leaders() -> None:
    """Another supervisor led then, and kept its own record; the notice itself is stored for all."""
    gone = replace(notice(1, seen=100.0, state=NoticeState.GONE), ended_at=130.0)
    [found] = reclaims_of([_entry(100.0)], [gone])
    assert (found.end, found.ended_at, found.seconds, found.is_lost) == ("gone", 130.0, 30.0, False)


def test_the_end_of_a_notice_that_nobody_has_is_not_known() -> None:
    """The latest of a node may stand; an earlier one does not, nor does one that ended before it came."""
    entries = [_entry(100.0), _entry(200.0)]
    assert [each.is_lost for each in reclaims_of(entries, [])] == [True, True]
    assert [(each.noticed_at, each.is_lost) for each in reclaims_of(entries, [notice(1, seen=200.0)])] == [
        (200.0, False),
        (100.0, True),
    ]
    before = replace(notice(1, seen=10.0, state=NoticeState.WITHDRAWN), ended_at=20.0)
    assert [each.is_lost for each in reclaims_of([_entry(100.0)], [before])] == [True]
    assert [each.is_lost for each in reclaims_of([_entry(100.0), _entry(110.0, "gone")], [])] == [False]
