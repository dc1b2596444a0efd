"""Keeps the latest report on every notice and the state of every source, until the supervisor has acknowledged them.

Bounded; a later report replaces an earlier one. An acknowledged report is not sent again by itself, but every hello
repeats it while its notice is active.
"""

import asyncio
from collections.abc import Callable, Sequence

from node_agent.notices import AnnouncementState, NoticeId, NoticeReport, ReportedSource, SourceName


class OutboxFull(Exception):  # noqa: N818 - it names what is so
    """The outbox has no room for another notice. The caller keeps it and offers it again later."""


class NoticeOutbox:
    """Holds reports until they are acknowledged and their notices have ended.

    Args:
        limit: The most notices at a time, including acknowledged ones that are still active.
        on_report: Called when the outbox has taken a report; neither raises nor waits, like the next one.
        on_acknowledged: Called when the supervisor has made the latest report on a notice durable.

    Attributes:
        changed: Set by each report and each new state of a source; the one who sends them waits for it, and clears it.
    """

    def __init__(
        self,
        limit: int,
        on_report: Callable[[NoticeReport], None] = lambda _report: None,
        on_acknowledged: Callable[[NoticeId], None] = lambda _notice: None,
    ) -> None:
        self._limit = limit
        self._on_report = on_report
        self._on_acknowledged = on_acknowledged
        self._reports: dict[NoticeId, NoticeReport] = {}
        self._unacknowledged: set[NoticeId] = set()
        self._finished: set[NoticeId] = set()
        self._statuses: dict[SourceName, ReportedSource] = {}
        self.changed = asyncio.Event()

    def put(self, report: NoticeReport) -> None:
        """Takes a report, which replaces an older one about the same notice.

        Raises:
            OutboxFull: The notice is new and there is no room.
        """
        if report.id not in self._reports and len(self._reports) >= self._limit:
            raise OutboxFull(f"{self._limit} notices are waiting or active")
        self._reports[report.id] = report
        self._finished.discard(report.id)
        self._unacknowledged.add(report.id)
        self.changed.set()
        self._on_report(report)

    def finish(self, notice: NoticeId) -> None:
        """Ends a notice whose subject is gone: it leaves the outbox as soon as it is acknowledged."""
        self._finished.add(notice)
        self._drop_if_done(notice)

    def acknowledge(self, notice: NoticeId, revision: int) -> None:
        """Records that the supervisor has made this revision durable.

        A revision older than the present one changes nothing.
        """
        report = self._reports.get(notice)
        if report is None or revision < report.revision:
            return
        if notice in self._unacknowledged:
            self._on_acknowledged(notice)
        self._unacknowledged.discard(notice)
        if report.announcement is AnnouncementState.WITHDRAWN:
            self._finished.add(notice)
        self._drop_if_done(notice)

    def _drop_if_done(self, notice: NoticeId) -> None:
        if notice in self._finished and notice not in self._unacknowledged:
            self._finished.discard(notice)
            self._reports.pop(notice, None)

    def set_status(self, status: ReportedSource) -> None:
        """Takes the present state of a source. Another poll with the same result is not a change."""
        before = self._statuses.get(status.source)
        self._statuses[status.source] = status
        if before is None or (before.state, before.detail) != (status.state, status.detail):
            self.changed.set()

    def unacknowledged(self) -> Sequence[NoticeReport]:
        """Returns the reports that are not durable yet, oldest notice first."""
        return [report for notice, report in self._reports.items() if notice in self._unacknowledged]

    def reports(self) -> Sequence[NoticeReport]:
        """Returns the reports of every active notice, and every withdrawal that is not durable yet."""
        return list(self._reports.values())

    def statuses(self) -> Sequence[ReportedSource]:
        return list(self._statuses.values())
