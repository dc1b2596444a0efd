"""What the supervisor has to know: the latest word on every notice and of every source.

Bounded, latest wins; what was acknowledged is not sent again on its own, but said again in every hello while it is so.
"""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from node_agent.notices import Announcement, NoticeId, NoticeReport, SourceName, SourceStatus


class OutboxFull(Exception):  # noqa: N818 - it names what is so
    """There is no room for another notice: keep it and offer it again later."""


class OutboxObserver(Protocol):
    """Told of what comes and what is settled; it neither raises nor waits."""

    def on_report(self, report: NoticeReport) -> None:
        """A report was taken in."""

    def on_acknowledged(self, notice: NoticeId) -> None:
        """The latest report on this notice is durable."""


class Outbox:
    """The agent's side of what is durable and what is not yet.

    Args:
        limit: Most notices at a time, acknowledged ones that are still active included.

    Attributes:
        witness: Who is told, if anybody.
    """

    def __init__(self, limit: int) -> None:
        self.observer: OutboxObserver | None = None
        self._limit = limit
        self._reports: dict[NoticeId, NoticeReport] = {}
        self._unacknowledged: set[NoticeId] = set()
        self._finished: set[NoticeId] = set()
        self._statuses: dict[SourceName, SourceStatus] = {}
        self._changed = asyncio.Event()

    def put(self, report: NoticeReport) -> None:
        """Take a report; it replaces an older one about the same notice.

        Raises:
            OutboxFull: The notice is new and there is no room.
        """
        if report.id not in self._reports and len(self._reports) >= self._limit:
            raise OutboxFull(f"{self._limit} notices are waiting or active")
        self._reports[report.id] = report
        self._finished.discard(report.id)
        self._unacknowledged.add(report.id)
        self._changed.set()
        if self.observer is not None:
            self.observer.on_report(report)

    def finish(self, notice: NoticeId) -> None:
        """Nothing more will be said of it, as its subject is gone: it leaves as soon as it is acknowledged."""
        self._finished.add(notice)
        self._let_go(notice)

    def set_status(self, status: SourceStatus) -> None:
        """Take the present state of a source; that it was polled once more and said the same is no change."""
        before = self._statuses.get(status.source)
        self._statuses[status.source] = status
        if before is None or (before.state, before.detail) != (status.state, status.detail):
            self._changed.set()

    def acknowledge(self, notice: NoticeId, revision: int) -> None:
        """The supervisor has made this notice durable at this revision; an older one than ours settles nothing."""
        report = self._reports.get(notice)
        if report is None or revision < report.revision:
            return
        if notice in self._unacknowledged and self.observer is not None:
            self.observer.on_acknowledged(notice)
        self._unacknowledged.discard(notice)
        if report.announcement is Announcement.WITHDRAWN:
            self._finished.add(notice)
        self._let_go(notice)

    def _let_go(self, notice: NoticeId) -> None:
        if notice in self._finished and notice not in self._unacknowledged:
            self._finished.discard(notice)
            self._reports.pop(notice, None)

    def unacknowledged(self) -> Sequence[NoticeReport]:
        """What is not durable yet, oldest notice first."""
        return [report for notice, report in self._reports.items() if notice in self._unacknowledged]

    def reports(self) -> Sequence[NoticeReport]:
        """Every active notice and every withdrawal that is not durable yet."""
        return list(self._reports.values())

    def statuses(self) -> Sequence[SourceStatus]:
        """The present state of every source."""
        return list(self._statuses.values())

    def wake(self) -> None:
        """Make whoever waits for a change look again."""
        self._changed.set()

    async def wait_changed(self) -> None:
        """Wait until something was put or noted since the last call. One caller at a time."""
        await self._changed.wait()
        self._changed.clear()
