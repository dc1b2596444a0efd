"""The poll loop of one source."""

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest
from structlog.testing import capture_logs

from node_agent.node import ThisNode
from node_agent.notices import (
    AnnouncementState,
    Answer,
    Clear,
    NodeIdentity,
    Noticed,
    NoticeReport,
    NoticeSubject,
    NoticeSubjectKind,
    NoticeUrgency,
    PollResult,
    SourceName,
    SourceUnavailable,
)
from node_agent.outbox import NoticeOutbox
from node_agent.poller import Poller
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from tests.testkit.waiting import until

NOTICE = Noticed(None, 100.0, "m")

During = Callable[[], Awaitable[object]]


class ScriptedSource:
    name = SourceName("script")

    def __init__(self, *answers: Answer | Exception) -> None:
        self.answers = list(answers)
        self.identity: NodeIdentity | Exception | None = None
        self.polls = 0
        self.at_once = 0
        self.most_at_once = 0
        self.during: During | None = None

    async def identify(self) -> NodeIdentity | None:
        if isinstance(self.identity, Exception):
            raise self.identity
        return self.identity

    async def poll(self) -> Answer:
        self.polls += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.during:
                await self.during()
        finally:
            self.at_once -= 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        """Nothing to close."""


def poller(source: ScriptedSource, outbox: NoticeOutbox, uid: str = "uid-1", period: float = 1.0) -> Poller:
    """A poller of a node whose uid is known, unless it is empty."""
    return Poller(source, ThisNode("n1", uid), outbox, Clock(), period, bulkhead=Bulkhead(Clock()))


async def test_a_notice_is_in_the_outbox_after_its_poll() -> None:
    outbox = NoticeOutbox(10)
    await poller(ScriptedSource(NOTICE), outbox).once()
    assert [report.id for report in outbox.unacknowledged()] == ["script/uid-1"]
    assert [status.state for status in outbox.statuses()] == [PollResult.NOTICED]


async def test_a_source_is_unknown_before_its_first_poll() -> None:
    outbox = NoticeOutbox(10)
    poller(ScriptedSource(Clear()), outbox)
    assert [status.state for status in outbox.statuses()] == [PollResult.UNKNOWN]


async def test_failures_are_unknown_and_logged_once() -> None:
    """A failing source leaves the notice as it is; it is logged when it starts failing and when it recovers.

    So is the notice itself, by the id that the supervisor's lines have.
    """
    outbox = NoticeOutbox(10)
    with capture_logs() as lines:
        subject = poller(
            ScriptedSource(NOTICE, SourceUnavailable("HTTP 500"), SourceUnavailable("HTTP 500"), Clear()), outbox
        )
        await subject.once()
        await subject.once()
        await subject.once()
        assert [(status.state, status.detail) for status in outbox.statuses()] == [(PollResult.UNKNOWN, "HTTP 500")]
        await subject.once()
    assert [line["event"] for line in lines] == ["node.noticed", "dependency.failing", "dependency.recovered"]
    assert lines[0]["notice"] == outbox.reports()[0].id
    assert [report.announcement for report in outbox.reports()] == [AnnouncementState.ACTIVE]


async def test_an_announcement_for_the_far_future_is_unknown_until_it_is_nearer() -> None:
    """Nobody announces a reclaim so early: neither a notice nor none, said once in the log and in the state."""
    far = Noticed(datetime(9999, 12, 31, tzinfo=UTC), 2.5e11, "m")
    outbox = NoticeOutbox(10)
    script = ScriptedSource(far, far, Noticed(datetime(9999, 12, 31, tzinfo=UTC), 3600.0, "m"))
    with capture_logs() as lines:
        subject = Poller(
            script, ThisNode("n1", "uid-1"), outbox, Clock(), 1.0, bulkhead=Bulkhead(Clock()), max_lead=3600.0
        )
        await subject.once()
        await subject.once()
        assert outbox.reports() == []
        assert [(status.state, status.detail) for status in outbox.statuses()] == [
            (PollResult.UNKNOWN, "announces a reclaim at 9999-12-31T00:00:00Z, more than 3600 s ahead")
        ]
        await subject.once()
    assert [status.state for status in outbox.statuses()] == [PollResult.NOTICED]
    assert [line["event"] for line in lines] == ["dependency.failing", "dependency.recovered", "node.noticed"]


async def test_a_poll_that_hangs_is_given_up() -> None:
    source, outbox = ScriptedSource(Clear()), NoticeOutbox(10)
    source.during = asyncio.Event().wait
    before = time.monotonic()
    await poller(source, outbox).once()
    assert 1.0 <= time.monotonic() - before < 15.0
    assert "within 1 s" in outbox.statuses()[0].detail


async def test_an_unexpected_failure_is_not_hidden() -> None:
    """A defect ends the loop, and with it the process, instead of being polled over."""
    with pytest.raises(ZeroDivisionError):
        await poller(ScriptedSource(ZeroDivisionError()), NoticeOutbox(10)).once()


async def test_polls_never_overlap_and_keep_their_period() -> None:
    """The first comes at once; slow answers make later polls, never two at a time."""
    source = ScriptedSource(Clear())
    source.during = lambda: asyncio.sleep(0.06)
    task = asyncio.create_task(poller(source, NoticeOutbox(10), period=0.03).run())
    started = time.monotonic()
    await asyncio.sleep(0)
    assert source.polls == 1
    await until(lambda: source.polls >= 4)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert source.most_at_once == 1
    assert time.monotonic() - started > 3 * 0.06 - 0.01


async def test_the_period_is_at_most_what_was_set_and_varies() -> None:
    """Jitter shortens the wait for a poll, it never lengthens it, and takes a tenth at most."""
    source, at = ScriptedSource(Clear()), list[float]()

    async def note() -> None:
        at.append(time.monotonic())

    def gaps() -> list[float]:
        return [after - before for before, after in itertools.pairwise(at)]

    source.during = note
    task = asyncio.create_task(poller(source, NoticeOutbox(10), period=0.3).run())
    # Without jitter no gap is below the period, however long a busy machine is given.
    await until(lambda: len(at) >= 13 and min(gaps()) < 0.2955, "a wait was shorter than the period")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert min(gaps()) >= 0.25
    assert statistics.median(gaps()) < 0.6


async def test_a_scheduled_reclaim_may_be_days_ahead() -> None:
    """The longest lead is about sudden ones: maintenance is announced days ahead."""
    planned = Noticed(datetime(2030, 1, 1, tzinfo=UTC), 5e5, "m", NoticeUrgency.SCHEDULED)
    outbox = NoticeOutbox(10)
    await Poller(
        ScriptedSource(planned),
        ThisNode("n1", "uid-1"),
        outbox,
        Clock(),
        1.0,
        bulkhead=Bulkhead(Clock()),
        max_lead=3600.0,
    ).once()
    assert [report.notice_class for report in outbox.reports()] == [NoticeUrgency.SCHEDULED]


async def test_the_node_is_identified_before_its_first_poll() -> None:
    """A source that cannot tell the machine yet says nothing about it, not even that all is clear."""
    source, outbox = ScriptedSource(NOTICE), NoticeOutbox(10)
    source.identity = SourceUnavailable("no usable instance-id")
    subject = poller(source, outbox, uid="")
    await subject.once()
    assert (source.polls, outbox.statuses()[0].detail) == (0, "no usable instance-id")
    source.identity = NodeIdentity("i-7")
    await subject.once()
    assert [report.id for report in outbox.unacknowledged()] == ["script/i-7"]


async def test_a_source_that_knows_no_machine_waits_for_one_that_does() -> None:
    """Its polls begin when another source or the settings have told the uid."""
    outbox, node, source = NoticeOutbox(10), ThisNode("n1", ""), ScriptedSource(NOTICE)
    subject = Poller(source, node, outbox, Clock(), 1.0, bulkhead=Bulkhead(Clock()))
    await subject.once()
    assert (source.polls, outbox.statuses()[0].state) == (0, PollResult.UNKNOWN)
    node.resolve(NodeIdentity("i-7"))
    await subject.once()
    assert [report.id for report in outbox.unacknowledged()] == ["script/i-7"]


async def test_the_settings_uid_wins() -> None:
    """A uid that was set is not replaced by what a source says."""
    source, outbox = ScriptedSource(NOTICE), NoticeOutbox(10)
    source.identity = NodeIdentity("i-7")
    await poller(source, outbox, uid="set").once()
    assert outbox.reports()[0].subject == NoticeSubject(NoticeSubjectKind.NODE, "n1", "set")


async def test_a_full_outbox_delays_a_report_and_loses_none() -> None:
    outbox = NoticeOutbox(1)
    other = NoticeReport(
        SourceName("other"), NoticeSubject(NoticeSubjectKind.POD, "a/b", "p"), 1, AnnouncementState.WITHDRAWN
    )
    outbox.put(other)
    subject = poller(ScriptedSource(NOTICE), outbox)
    await subject.once()
    assert list(outbox.reports()) == [other]
    outbox.acknowledge(other.id, 1)
    await subject.once()
    assert [(report.id, report.revision) for report in outbox.reports()] == [("script/uid-1", 1)]
