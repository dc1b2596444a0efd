"""The thread that may block: it runs user callbacks and posts reports."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .uplink import RetryPolicy, RunIsOver, Uplink, is_unknown
from .wire import Refused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from .monitor import Monitor
    from .ranks import Ranks
    from .stderr import StderrLog
    from .values import Notice

_POLL_SECONDS = 0.5  # between two polls of the rank
_UNKNOWN_SECONDS = 5.0
_UNKNOWN = (
    "this process's rank is unknown: pass rank= to init() or set RANK. Only rank 0 can say when the job's checkpoint "
    "is saved"
)


class Reporter:
    """Polls the rank, calls the notice callbacks, and repeats each report until it is confirmed."""

    def __init__(
        self, monitor: Monitor, uplink: Uplink, ranks: Ranks, callbacks: NoticeCallbacks, stderr: StderrLog
    ) -> None:
        self._monitor = monitor
        self._uplink = uplink
        self._ranks = ranks
        self._callbacks = callbacks
        self._stderr = stderr
        self._retry = RetryPolicy(stderr)
        self._not_before = 0.0
        self._unknown_since: float | None = None

    def run(self) -> None:
        """Poll, notify and report forever."""
        version = 0
        while True:
            rank = self._ranks.rank.poll()
            self._monitor.set_rank(rank, self._ranks.world_size.poll())
            self._watch_rank(rank, time.monotonic())
            self._notify()
            self._deliver()
            waiting = self._not_before - time.monotonic()
            version = self._monitor.wait_beyond(version, waiting if 0 < waiting < _POLL_SECONDS else _POLL_SECONDS)

    def _watch_rank(self, rank: int | None, now: float) -> None:
        """Say so if the rank is still unknown some seconds after the supervisor was first reached."""
        if rank is not None or not self._monitor.streams:
            self._unknown_since = None
        elif self._unknown_since is None:
            self._unknown_since = now
        elif now >= self._unknown_since + _UNKNOWN_SECONDS:
            self._stderr.once("rank", _UNKNOWN)

    def _notify(self) -> None:
        for notice in self._monitor.take_notices():
            self._callbacks.notify(notice)
        held = self._monitor.state.notice
        self._callbacks.notify(None if held is None else held.at(time.monotonic()))

    def _deliver(self) -> None:
        report = self._monitor.next_report()
        while report is not None and time.monotonic() >= self._not_before:
            try:
                self._uplink.report(report)
            except RunIsOver:
                self._monitor.end_run()
            except (Refused, Unreachable) as error:
                if is_unknown(error):
                    self._monitor.confirm(report)
                else:
                    self._not_before = time.monotonic() + self._retry.after(error)
            else:
                self._retry.delivered()
                self._monitor.confirm(report)
            report = self._monitor.next_report()


class NoticeCallbacks:
    """Calls each callback once per notice. A notice that was withdrawn and returns is reported again."""

    def __init__(self, stderr: StderrLog) -> None:
        self._stderr = stderr
        self._callbacks: list[tuple[Callable[[Notice], object], set[str]]] = []

    def add(self, callback: Callable[[Notice], object]) -> None:
        """Add a callback. It is called with the present notice first."""
        self._callbacks.append((callback, set()))

    def notify(self, notice: Notice | None) -> None:
        """Call the callbacks that have not seen this notice."""
        for callback, notified in list(self._callbacks):
            if notice is None:
                notified.clear()
            elif notice.id not in notified:
                notified.add(notice.id)
                self._call(callback, notice)

    def _call(self, callback: Callable[[Notice], object], notice: Notice) -> None:
        try:
            callback(notice)
        except Exception as error:  # noqa: BLE001 - user code may raise anything, and training must continue
            self._stderr.once("callback", f"a notice callback failed: {error!r}")
