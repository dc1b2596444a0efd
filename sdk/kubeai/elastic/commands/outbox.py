"""The launcher's latest report, until the supervisor has confirmed it."""

from __future__ import annotations

import threading
from dataclasses import replace

from .orders import Report


class Outbox:
    """Shared by the main thread, which publishes reports, and the threads that deliver them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._latest = Report(revision=1)
        self._confirmed = 0
        self._open = False
        self._closed = False

    def publish(self, report: Report) -> None:
        """Make this the latest report. If it differs from the present one, it gets the next revision."""
        with self._changed:
            if report != replace(self._latest, revision=report.revision):
                self._latest = replace(report, revision=self._latest.revision + 1)
                self._changed.notify_all()

    def latest(self) -> Report:
        """Return the latest report."""
        with self._changed:
            return self._latest

    def confirm(self, report: Report) -> None:
        """Record that the supervisor has confirmed this report."""
        with self._changed:
            self._confirmed = max(self._confirmed, report.revision)

    def raise_revision(self, report: Report) -> None:
        """Raise the revision of this report if it is still the latest: the supervisor knows a higher revision."""
        with self._changed:
            if self._latest.revision == report.revision:
                self._latest = replace(report, revision=report.revision + 1)

    def set_open(self, is_open: bool) -> None:  # noqa: FBT001 - the argument is the state to set.
        """Let ``wait`` return reports only while a stream is open, because every hello contains the whole report."""
        with self._changed:
            self._open = is_open
            self._changed.notify_all()

    def close(self) -> None:
        """Make every ``wait`` return None from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait(self) -> Report | None:
        """Block until there is a report to deliver. Returns None once the outbox is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._open and self._latest.revision > self._confirmed))
            return None if self._closed else self._latest
