"""The two threads that report: one may block in user code, the other answers agreements and must not."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from . import gates
from .messages import AgreementReply, ProcessReport, ProcessReportKind, TrainingPace
from .spending import seconds_since_start
from .uplink import CallRetry, ProcessUplink, RunIsOver, is_unknown
from .wire import CallRefused, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .messages import Notice
    from .monitor import Monitor
    from .ranks import NumberWatch
    from .threads import StderrLog

_POLL_SECONDS = 0.5  # between two polls of the rank
_UNKNOWN_SECONDS = 5.0
_UNKNOWN = (
    "this process's rank is unknown: pass rank= to init() or set RANK. Only rank 0 can say when the job's checkpoint "
    "is saved"
)
_SAMPLE_SECONDS = 0.5
_UNREAD_SECONDS = 10.0
_WINDOW_SECONDS = 1.0  # a sample every 0.5 s makes a shorter window too inexact
_WINDOWS = 20
_SAVES = 20
_SPENT_SECONDS = 60.0
"""Between two reports of rank 0 that say what its time was spent on, if it has nothing else to report."""


class Reporter:
    """The thread that may block: polls the rank, calls the notice callbacks, repeats each report until confirmed."""

    def __init__(
        self,
        monitor: Monitor,
        uplink: ProcessUplink,
        ranks: tuple[NumberWatch, NumberWatch],
        callbacks: Sequence[tuple[Callable[[Notice], object], set[str]]],
        stderr: StderrLog,
    ) -> None:
        self._monitor = monitor
        self._uplink = uplink
        self._rank, self._world_size = ranks
        self._callbacks = callbacks
        self._stderr = stderr
        self._retry = CallRetry(stderr)
        self._not_before = 0.0
        self._unknown_since: float | None = None
        self._says_spent_at = time.monotonic() + _SPENT_SECONDS

    def run(self) -> None:
        """Poll, notify and report forever."""
        version = 0
        while True:
            rank = self._rank.poll()
            self._monitor.set_rank(rank, self._world_size.poll())
            self._watch_rank(rank, time.monotonic())
            if time.monotonic() >= self._says_spent_at:
                self._says_spent_at = time.monotonic() + _SPENT_SECONDS
                self._monitor.owe_spent()
            while self._monitor.notices:
                self._notify(self._monitor.notices.popleft())
            self._notify(self._monitor.state.notice_at(time.monotonic()))
            self._deliver()
            waiting = self._not_before - time.monotonic()
            version = self._monitor.wait_beyond(version, waiting if 0 < waiting < _POLL_SECONDS else _POLL_SECONDS)

    def _watch_rank(self, rank: int | None, now: float) -> None:
        """Print a line if the rank is still unknown some seconds after the supervisor was first reached."""
        if rank is not None or not self._monitor.streams:
            self._unknown_since = None
        elif self._unknown_since is None:
            self._unknown_since = now
        elif now >= self._unknown_since + _UNKNOWN_SECONDS:
            self._stderr.once("rank", _UNKNOWN)

    def _notify(self, notice: Notice | None) -> None:
        """Call each callback once per notice. A notice that was withdrawn and returns is reported again."""
        for callback, notified in list(self._callbacks):
            if notice is None:
                notified.clear()
            elif notice.id not in notified:
                notified.add(notice.id)
                try:
                    callback(notice)
                except Exception as error:  # noqa: BLE001 - user code may raise anything, and training must continue
                    self._stderr.once("callback", f"a notice callback failed: {error!r}")

    def _deliver(self) -> None:
        report = self._monitor.next_report()
        while report is not None and time.monotonic() >= self._not_before:
            try:
                self._uplink.report(report, spent=self._monitor.spent())
            except RunIsOver:
                self._monitor.end_run()
            except (CallRefused, Unreachable) as error:
                if is_unknown(error):
                    self._monitor.confirm(report)
                else:
                    self._not_before = time.monotonic() + self._retry.after(error)
            else:
                self._retry.was_reached()
                self._monitor.confirm(report)
            report = self._monitor.next_report()


class AgreementReplies:
    """The thread that answers agreements: samples the step, and repeats each answer until it is confirmed.

    Nothing that a user's callback or a framework does can hold it up.
    """

    def __init__(self, monitor: Monitor, uplink: ProcessUplink, stderr: StderrLog) -> None:
        self._monitor = monitor
        self._uplink = uplink
        self._stderr = stderr
        self._timer = StepTimer()
        self._retry = CallRetry(stderr)
        self._not_before = 0.0
        self._repeat_at = 0.0
        self._streams = 0
        self._has_started = False

    def run(self) -> None:
        """Sample and answer forever. The thread sleeps until the script calls one of the functions with a step."""
        version = 0
        while True:
            now = time.monotonic()
            self._watch(self._sample(now), now)
            if self._monitor.streams != self._streams:  # the supervisor is back
                self._streams, self._not_before = self._monitor.streams, 0.0
            self._deliver()
            waiting = self._not_before - time.monotonic()
            if not 0 < waiting < _SAMPLE_SECONDS:
                waiting = _SAMPLE_SECONDS if self._monitor.member.agrees else threading.TIMEOUT_MAX
            version = self._monitor.wait_beyond(version, waiting)

    def _sample(self, now: float) -> TrainingPace:
        while self._monitor.saves:
            self._timer.saves.append(self._monitor.saves.popleft())
        step = gates.finished_steps()
        self._monitor.finished(step)
        if step is not None and not self._has_started:
            self._has_started = True
            self._monitor.set_member(start_seconds=seconds_since_start())
        pace = self._timer.sample(step, now)
        self._monitor.learn_pace(pace.step_seconds)
        return pace

    def _watch(self, pace: TrainingPace, now: float) -> None:
        """Print a line, and answer again, if the supervisor waits for a step that the script does not read."""
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
        monitor, position = self._monitor, self._monitor.next_reply()
        while position is not None and time.monotonic() >= self._not_before:
            pace = self._sample(time.monotonic())
            reply = AgreementReply(position, gates.finished_steps(), pace)
            generation = monitor.state.directive.generation
            try:
                self._uplink.report(ProcessReport(ProcessReportKind.AGREEMENT, monitor.member, None, generation, reply))
            except RunIsOver:
                monitor.end_run()
            except (CallRefused, Unreachable) as error:
                if is_unknown(error):
                    monitor.confirm_reply(position)
                else:
                    self._not_before = time.monotonic() + self._retry.after(error)
            else:
                self._retry.was_reached()
                monitor.confirm_reply(position)
            position = monitor.next_reply()


@dataclass(eq=False)
class StepTimer:
    """Measures how long steps and checkpoints take, and how long the step has not changed, from samples of the step.

    Times are seconds of one monotonic clock, which the caller passes in. The caller also appends to `saves` how long
    each checkpoint took.
    """

    saves: deque[float] = field(default_factory=lambda: deque(maxlen=_SAVES))
    _step: int | None = None
    _changed_at: float = 0.0
    _window: tuple[int, float] | None = None  # where the present window began
    _step_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOWS))

    def sample(self, step: int | None, now: float) -> TrainingPace:
        """Record that `step` steps are finished, and return the present pace.

        The time of a step is that of the fastest recent window, so that nobody is expected too late at a step.
        """
        if step is not None and step != self._step:
            self._step, self._changed_at = step, now
            began_step, began = self._window or (step, now)
            if self._window is None or step < began_step:  # the first one, or a rollback
                self._window = (step, now)
            elif now - began >= _WINDOW_SECONDS and step > began_step:
                self._step_seconds.append((now - began) / (step - began_step))
                self._window = (step, now)
        return TrainingPace(
            step_seconds=min(self._step_seconds, default=None),
            checkpoint_seconds=max(self.saves, default=None),
            unread_seconds=None if self._step is None else now - self._changed_at,
        )
