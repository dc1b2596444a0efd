"""The outbox keeps reports until they are acknowledged."""

from dataclasses import replace

import pytest

from node_agent.notices import (
    AnnouncementState,
    NoticeId,
    NoticeReport,
    NoticeSubject,
    NoticeSubjectKind,
    PollResult,
    ReportedSource,
    SourceName,
)
from node_agent.outbox import NoticeOutbox, OutboxFull

S = SourceName("s")


def report(
    uid: str = "u", revision: int = 1, announcement: AnnouncementState = AnnouncementState.ACTIVE
) -> NoticeReport:
    return NoticeReport(S, NoticeSubject(NoticeSubjectKind.NODE, "n", uid), revision, announcement)


def test_latest_wins_per_notice() -> None:
    outbox = NoticeOutbox(10)
    outbox.put(report(revision=1))
    outbox.put(report("other"))
    outbox.put(report(revision=2))
    assert list(outbox.unacknowledged()) == [report(revision=2), report("other")]


@pytest.mark.parametrize(("acknowledged", "waits"), [(1, True), (2, False), (3, False)])
def test_only_its_own_revision_or_a_higher_one_settles_a_report(acknowledged: int, waits: bool) -> None:  # noqa: FBT001 - a table's column
    """An acknowledgement that was on its way while the notice changed settles nothing."""
    outbox = NoticeOutbox(10)
    outbox.put(report(revision=2))
    outbox.acknowledge(NoticeId("s/u"), acknowledged)
    assert bool(outbox.unacknowledged()) is waits


def test_a_hello_repeats_active_notices_and_forgets_settled_withdrawals() -> None:
    """Everything that is so is said again after a reconnection, acknowledged or not."""
    outbox = NoticeOutbox(10)
    outbox.put(report("active"))
    outbox.put(report("withdrawn", announcement=AnnouncementState.WITHDRAWN))
    outbox.put(report("waiting", announcement=AnnouncementState.WITHDRAWN))
    outbox.acknowledge(NoticeId("s/active"), 1)
    outbox.acknowledge(NoticeId("s/withdrawn"), 1)
    outbox.acknowledge(NoticeId("s/never heard of"), 1)
    assert [known.subject.uid for known in outbox.reports()] == ["active", "waiting"]
    assert [known.subject.uid for known in outbox.unacknowledged()] == ["waiting"]


@pytest.mark.parametrize("acknowledged_first", [True, False])
def test_what_is_finished_leaves_once_it_is_durable(*, acknowledged_first: bool) -> None:
    """A subject that is gone: said until it is acknowledged, and not in the hellos after."""
    outbox = NoticeOutbox(1)
    gone = report(revision=2)
    outbox.put(gone)
    if acknowledged_first:
        outbox.acknowledge(gone.id, 2)
        outbox.finish(gone.id)
    else:
        outbox.finish(gone.id)
        outbox.acknowledge(gone.id, 1)
        assert list(outbox.reports()) == [gone]
        outbox.acknowledge(gone.id, 2)
    assert not outbox.reports()
    outbox.finish(gone.id)
    outbox.put(report("another"))
    outbox.acknowledge(report("another").id, 1)
    assert list(outbox.reports()) == [report("another")]


def test_it_is_bounded() -> None:
    """A notice too many is refused, one that is known is always updated, and settled ones make room."""
    outbox = NoticeOutbox(2)
    outbox.put(report("a"))
    outbox.put(report("b"))
    with pytest.raises(OutboxFull):
        outbox.put(report("c"))
    outbox.put(report("a", 2, AnnouncementState.WITHDRAWN))
    outbox.acknowledge(NoticeId("s/a"), 2)
    outbox.put(report("c"))
    assert [known.subject.uid for known in outbox.reports()] == ["b", "c"]


def test_changes_wake_whoever_waits() -> None:
    """A report or another state of a source wakes; one more poll with the same answer does not."""
    outbox = NoticeOutbox(10)
    status = ReportedSource(S, PollResult.CLEAR, last_good=1.0)

    def woken() -> bool:
        changed = outbox.changed.is_set()
        outbox.changed.clear()
        return changed

    assert not woken()
    outbox.put(report())
    assert woken()
    assert not woken()
    outbox.set_status(status)
    assert woken()
    outbox.set_status(replace(status, last_good=2.0))
    assert not woken()
    assert [known.last_good for known in outbox.statuses()] == [2.0]
    outbox.set_status(replace(status, state=PollResult.UNKNOWN, detail="HTTP 500"))
    assert woken()
    outbox.set_status(replace(status, state=PollResult.UNKNOWN, detail="HTTP 503"))
    assert woken()
