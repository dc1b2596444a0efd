"""The state that the library's threads and the training script share, and the reports that are still to be sent.

Every change takes one condition and wakes all waiters. The state itself is immutable and replaced as a whole, so the
script and forked children read it without a lock.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from . import flag
from .state import Line, State, advance, apply, apply_annotation, apply_sigterm

if TYPE_CHECKING:
    from collections.abc import Callable

    from .values import Directive, Notice

_MAX_NOTICES = 64  # queued while a callback is running; the oldest are dropped


class ReportKind(str, Enum):
    """The kinds of reports."""

    RANK = "rank"
    SAVED = "saved"
    LEFT = "left"


@dataclass(frozen=True)
class Report:
    """A report that is repeated until it is confirmed. `generation` is that of the directive it answers."""

    kind: ReportKind
    rank: int | None
    step: int | None
    generation: int


class Monitor:
    """Shared state. Attributes may be read without the lock; methods that change something take it."""

    def __init__(self) -> None:
        self.rank: int | None = None
        self.step: int | None = None
        self.run_is_over = False
        # Reentrant (the default), because a signal handler may call `checkpoint_saved`.
        self._changed = threading.Condition()
        self._received = State()
        self._is_terminated = False
        self._version = 0
        self._has_polled_rank = False
        self._has_stream = False
        self._reported_rank: int | None = None
        self._saved: Report | None = None
        self._notices: deque[Notice | None] = deque(maxlen=_MAX_NOTICES)

    @property
    def state(self) -> State:
        """The received state and a watched SIGTERM. A LEAVE or STOP of the supervisor takes precedence."""
        received = self._received
        return apply_sigterm(received) if self._is_terminated and not received.directive.is_final else received

    @property
    def is_released(self) -> bool:
        """Whether the job is suspended or over, so that nothing is left to wait for."""
        return self.state.release or self.run_is_over

    def receive(self, line: Line) -> None:
        """Apply a line. If it lowers the flag, the flag is down when this returns."""
        with self._changed:
            self._notices.append(line.notice)
            self._set_state(apply(self._received, line, time.monotonic()))

    def receive_annotation(self, directive: Directive, *, is_news: bool) -> None:
        """Apply a directive from the pod's annotation, as `receive` does."""
        with self._changed:
            state = apply_annotation(self._received, directive, is_news=is_news)
            if state is not self._received:
                self._set_state(state)

    def run_timer(self, poll: Callable[[], float | None]) -> None:
        """Apply pending directives when they are due, and call `poll` in between. Does not return.

        Args:
            poll: Returns the seconds until it must be called again at the latest, or None for never.
        """
        while True:
            seconds = poll()
            with self._changed:
                now = time.monotonic()
                due = advance(self._received, now)
                if due is not self._received:
                    self._set_state(due)
                pending = self._received.pending
                waits = [threading.TIMEOUT_MAX if pending is None else pending.due - now, seconds]
                self._changed.wait(min(wait for wait in waits if wait is not None))

    def checkpoint_saved(self, step: int | None) -> None:
        """Record that a checkpoint is on disk, to be reported."""
        with self._changed:
            generation = self.state.directive.generation
            self.step = self.step if step is None else step
            self._saved = Report(ReportKind.SAVED, self.rank, step, generation)
            saved = replace(self._received, saved_for=generation, saved_after_signal=self._is_terminated)
            self._set_state(saved)

    def terminate(self) -> None:
        """Treat SIGTERM as a LEAVE.

        This runs in a signal handler, so it takes no lock and wakes no thread: the script may be interrupted anywhere,
        even
        while it wakes the threads.
        """
        self._is_terminated = True
        flag.lower()

    def set_rank(self, rank: int | None) -> None:
        """Record the result of a rank poll."""
        with self._changed:
            if rank != self.rank or not self._has_polled_rank:
                self.rank = rank
                self._has_polled_rank = True
                self._wake()

    def wait_for_rank(self, seconds: float) -> int | None:
        """Wait until the rank has been polled once, at most `seconds`, and return it."""
        self.wait_for(lambda: self._has_polled_rank, seconds)
        return self.rank

    def stream_opened(self, hello_rank: int | None) -> None:
        """Record that a stream is open and which rank its hello contained."""
        with self._changed:
            self._has_stream, self._reported_rank = True, hello_rank
            self._wake()

    def stream_ended(self) -> None:
        """Record that there is no stream. The next hello will contain the rank."""
        with self._changed:
            self._has_stream = False

    def end_run(self) -> None:
        """Record that the run is over for the supervisor."""
        with self._changed:
            self.run_is_over = True
            self._wake()

    def left(self) -> Report:
        """Return the report that this process exits."""
        return Report(ReportKind.LEFT, self.rank, self.step, self.state.directive.generation)

    def next_report(self) -> Report | None:
        """Return the next report to send: a saved checkpoint first, then a changed rank."""
        with self._changed:
            if self.run_is_over:
                return None
            if self._saved is not None:
                return self._saved
            if self._has_stream and self.rank != self._reported_rank:
                return Report(ReportKind.RANK, self.rank, self.step, self.state.directive.generation)
            return None

    def confirm(self, report: Report) -> None:
        """Record that a report from `next_report` was delivered."""
        with self._changed:
            self._reported_rank = report.rank
            if self._saved is report:
                self._saved = None

    def take_notices(self) -> list[Notice | None]:
        """Return the notices of all lines since the last call; None for a line without a notice."""
        with self._changed:
            notices = list(self._notices)
            self._notices.clear()
            return notices

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until `condition()` is true, at most `seconds`."""
        with self._changed:
            self._changed.wait_for(condition, seconds)

    def wait_beyond(self, version: int, seconds: float) -> int:
        """Wait until the version differs from `version`, at most `seconds`, and return the present version."""
        self.wait_for(lambda: self._version != version, seconds)
        return self._version

    def _set_state(self, state: State) -> None:
        # Set the state first: a thread that sees the flag down must find the directive that lowered it.
        self._received = state
        if state.directive.is_final:
            flag.lower()
        self._wake()

    def _wake(self) -> None:
        self._version += 1
        self._changed.notify_all()
