"""What the library's threads and the training script share: the state, and what is still to be said about it.

Changes are made under one condition and wake everybody who waits for one. The state itself is immutable and replaced
as a whole, so the script and forked children read it without a lock.
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

_MAX_NOTICES = 64  # waiting for a callback that does not return; the oldest are dropped


class ReportKind(str, Enum):
    """What a process reports."""

    RANK = "rank"
    SAVED = "saved"
    LEFT = "left"


@dataclass(frozen=True)
class Report:
    """Something to say until it is confirmed; `generation` is that of the directive it answers."""

    kind: ReportKind
    rank: int | None
    step: int | None
    generation: int


class Monitor:
    """See the module. Attributes may be read without the lock; methods that change something take it."""

    def __init__(self) -> None:
        self.rank: int | None = None
        self.step: int | None = None
        self.run_is_over = False
        # Reentrant, as the default is: the script may say `checkpoint_saved` in a signal handler.
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
        """What was heard, and SIGTERM where that was asked for: a supervisor's own LEAVE or STOP comes before it."""
        received = self._received
        return apply_sigterm(received) if self._is_terminated and not received.directive.is_final else received

    @property
    def is_released(self) -> bool:
        """Whether nothing is left to wait for: the job is suspended or over."""
        return self.state.release or self.run_is_over

    def receive(self, line: Line) -> None:
        """Apply a line. The flag has fallen when this returns, if the line says so."""
        with self._changed:
            self._notices.append(line.notice)
            self._set_state(apply(self._received, line, time.monotonic()))

    def receive_annotation(self, directive: Directive, *, is_news: bool) -> None:
        """Apply what the pod's annotation says; as for `receive`."""
        with self._changed:
            state = apply_annotation(self._received, directive, is_news=is_news)
            if state is not self._received:
                self._set_state(state)

    def run_timer(self, poll: Callable[[], float | None]) -> None:
        """Let pending directives take effect when they are due, and look elsewhere meanwhile; does not return.

        Args:
            poll: called now and then; returns after how many seconds to call it again at the latest, None for never.
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
        """Note that a checkpoint is on disk, to be reported."""
        with self._changed:
            generation = self.state.directive.generation
            self.step = self.step if step is None else step
            self._saved = Report(ReportKind.SAVED, self.rank, step, generation)
            saved = replace(self._received, saved_for=generation, saved_after_signal=self._is_terminated)
            self._set_state(saved)

    def terminate(self) -> None:
        """Take SIGTERM for a LEAVE.

        Called in a signal handler, so it takes no lock and wakes nobody: the script may have been interrupted anywhere,
        in the middle of waking the threads too.
        """
        self._is_terminated = True
        flag.lower()

    def set_rank(self, rank: int | None) -> None:
        """Note what a look at the rank has found."""
        with self._changed:
            if rank != self.rank or not self._has_polled_rank:
                self.rank = rank
                self._has_polled_rank = True
                self._wake()

    def wait_for_rank(self, seconds: float) -> int | None:
        """The rank, once somebody has looked for it or the time is over."""
        self.wait_for(lambda: self._has_polled_rank, seconds)
        return self.rank

    def stream_opened(self, hello_rank: int | None) -> None:
        """Note that the supervisor hears us and which rank the hello said."""
        with self._changed:
            self._has_stream, self._reported_rank = True, hello_rank
            self._wake()

    def stream_ended(self) -> None:
        """Note that there is no stream; the next hello says the rank."""
        with self._changed:
            self._has_stream = False

    def end_run(self) -> None:
        """Note that the supervisor has no more to say to this run."""
        with self._changed:
            self.run_is_over = True
            self._wake()

    def left(self) -> Report:
        """The report that this process ends."""
        return Report(ReportKind.LEFT, self.rank, self.step, self.state.directive.generation)

    def next_report(self) -> Report | None:
        """What is to be said next: a saved checkpoint, then a rank that is not the one that was told last."""
        with self._changed:
            if self.run_is_over:
                return None
            if self._saved is not None:
                return self._saved
            if self._has_stream and self.rank != self._reported_rank:
                return Report(ReportKind.RANK, self.rank, self.step, self.state.directive.generation)
            return None

    def confirm(self, report: Report) -> None:
        """Note that a report from `next_report` has arrived."""
        with self._changed:
            self._reported_rank = report.rank
            if self._saved is report:
                self._saved = None

    def take_notices(self) -> list[Notice | None]:
        """The notices of all lines since the last call; None for a line without one."""
        with self._changed:
            notices = list(self._notices)
            self._notices.clear()
            return notices

    def wait_for(self, what: Callable[[], bool], seconds: float) -> None:
        """Wait until `what()` holds, or the time is over."""
        with self._changed:
            self._changed.wait_for(what, seconds)

    def wait_beyond(self, version: int, seconds: float) -> int:
        """Wait until something has changed since `version`, or the time is over; the version now."""
        self.wait_for(lambda: self._version != version, seconds)
        return self._version

    def _set_state(self, state: State) -> None:
        # The state first: whoever sees the flag fallen must find the directive that did it.
        self._received = state
        if state.directive.is_final:
            flag.lower()
        self._wake()

    def _wake(self) -> None:
        self._version += 1
        self._changed.notify_all()
