"""The launcher's present report, until the supervisor has confirmed it: latest wins."""

from __future__ import annotations

import threading
from dataclasses import replace

from .orders import Report


class Outbox:
    """Shared by the main thread, which offers reports, and the threads that deliver them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._latest = Report(revision=1)
        self._confirmed = 0
        self._open = False
        self._closed = False

    def publish(self, report: Report) -> None:
        """Make this the present report, under the next revision if it says anything new."""
        with self._changed:
            if report != replace(self._latest, revision=report.revision):
                self._latest = replace(report, revision=self._latest.revision + 1)
                self._changed.notify_all()

    def latest(self) -> Report:
        """Return the present report."""
        with self._changed:
            return self._latest

    def confirm(self, report: Report) -> None:
        """Note that the supervisor knows this report."""
        with self._changed:
            self._confirmed = max(self._confirmed, report.revision)

    def raise_revision(self, report: Report) -> None:
        """Give the present report a higher revision, if it is this one: the supervisor knows a younger revision."""
        with self._changed:
            if self._latest.revision == report.revision:
                self._latest = replace(report, revision=report.revision + 1)

    def set_open(self, is_open: bool) -> None:  # noqa: FBT001 - the state itself is what is set.
        """Let ``wait`` return reports: only while a stream is open, as every hello says all of it again."""
        with self._changed:
            self._open = is_open
            self._changed.notify_all()

    def close(self) -> None:
        """Make every ``wait`` return None, now and from now on."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait(self) -> Report | None:
        """Block until there is a report to deliver; None once the outbox is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._open and self._latest.revision > self._confirmed))
            return None if self._closed else self._latest
