"""The thread that answers agreements: nothing that a user's callback or a framework does can hold it up."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from . import gates
from .messages import Pace, Reply, Report, ReportKind
from .step_clock import StepClock
from .uplink import RetryPolicy, RunIsOver, Uplink, is_unknown
from .wire import Refused, Unreachable

if TYPE_CHECKING:
    from .agreement import Position
    from .monitor import Monitor
    from .stderr import StderrLog

_SAMPLE_SECONDS = 0.5
_UNREAD_SECONDS = 10.0


class Replies:
    """Samples the step, and repeats each answer until it is confirmed."""

    def __init__(self, monitor: Monitor, uplink: Uplink, stderr: StderrLog) -> None:
        self._monitor = monitor
        self._uplink = uplink
        self._stderr = stderr
        self._clock = StepClock()
        self._retry = RetryPolicy(stderr)
        self._not_before = 0.0
        self._repeat_at = 0.0
        self._streams = 0

    def run(self) -> None:
        """Sample and answer forever. The thread sleeps until the script calls one of the functions with a step."""
        version = 0
        while True:
            now = time.monotonic()
            self._watch(self._sample(now), now)
            self._deliver()
            version = self._monitor.wait_beyond(version, self._pause(time.monotonic()))

    def _sample(self, now: float) -> Pace:
        for seconds in self._monitor.take_saves():
            self._clock.saved(seconds)
        pace = self._clock.sample(gates.finished_steps(), now)
        self._monitor.learn_step_seconds(pace.step_seconds)
        return pace

    def _watch(self, pace: Pace, now: float) -> None:
        """Say so, and answer again, if the supervisor waits for a step that the script does not read."""
        unread = pace.unread_seconds
        if unread is None or unread < _UNREAD_SECONDS or not self._monitor.is_awaited:
            self._repeat_at = now
            return
        self._stderr.once(
            "unread", f"the supervisor waits for this process, which has not called should_stop() for {unread:.0f} s"
        )
        if now >= self._repeat_at:
            self._repeat_at = now + _UNREAD_SECONDS
            self._monitor.repeat_replies()

    def _deliver(self) -> None:
        if self._monitor.streams != self._streams:  # the supervisor is back
            self._streams, self._not_before = self._monitor.streams, 0.0
        position = self._monitor.next_reply()
        while position is not None and time.monotonic() >= self._not_before:
            self._post(position)
            position = self._monitor.next_reply()

    def _post(self, position: Position) -> None:
        monitor = self._monitor
        pace = self._sample(time.monotonic())
        reply = Reply(position, gates.finished_steps(), pace)
        report = Report(ReportKind.AGREEMENT, monitor.member, None, monitor.state.directive.generation, reply)
        try:
            self._uplink.report(report)
        except RunIsOver:
            monitor.end_run()
        except (Refused, Unreachable) as error:
            if is_unknown(error):
                monitor.confirm_reply(position)
            else:
                self._not_before = time.monotonic() + self._retry.after(error)
        else:
            self._retry.delivered()
            monitor.confirm_reply(position)

    def _pause(self, now: float) -> float:
        waiting = self._not_before - now
        if 0 < waiting < _SAMPLE_SECONDS:
            return waiting
        return _SAMPLE_SECONDS if self._monitor.member.agrees else threading.TIMEOUT_MAX
