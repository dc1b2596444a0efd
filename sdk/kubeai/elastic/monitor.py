"""The state that the library's threads and the training script share, and the reports that are still to be sent.

Every change takes one condition and wakes all waiters. The state itself is immutable and replaced as a whole, so the
script and forked children read it without a lock.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from . import flag, gates
from .agreement import Purpose
from .messages import Hello, Member, Report, ReportKind
from .participant import Participant
from .state import Line, State, advance, apply, apply_annotation, apply_sigterm, take_effect
from .values import DirectiveKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from .agreement import Position
    from .values import Directive, Notice

_MAX_NOTICES = 64  # queued while a callback is running; the oldest are dropped
_NO_STOP = 0  # the generation of a report that answers no stop
_NEWS = 1.5  # a step takes so many times as long as before, or as short


class Monitor:
    """Shared state. Attributes may be read without the lock; methods that change something take it."""

    def __init__(self) -> None:
        self.member = Member()
        self.step: int | None = None
        self.run_is_over = False
        self.streams = 0
        self.agreements = Participant()
        # Reentrant (the default), because a signal handler may call `checkpoint_saved`.
        self._changed = threading.Condition()
        self._received = State()
        self._is_terminated = False
        self._is_ending = False  # the script knows that it must stop, or exits
        self._version = 0
        self._has_polled_rank = False
        self._has_stream = False
        self._reported: Member | None = None
        self._outcome: Report | None = None  # of the last save
        self._stopped_at: int | None = None  # the step after which `should_stop` was True first
        self._failure = ""  # why the checkpoint that a stop asks for could not be saved
        self._saved_at_signal: Report | None = None  # the last one after SIGTERM; training does not go on after it
        self._holds: Purpose | None = None  # the answer waits for the report of the checkpoint
        self._resumed: Report | None = None
        self._save_began: float | None = None
        self._saves: list[float] = []
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

    @property
    def is_awaited(self) -> bool:
        """Whether the supervisor waits until the script calls `should_stop` or `should_checkpoint` with a step."""
        return not self._is_ending and (self.state.directive.is_final or self.agreements.is_awaited)

    def receive(self, line: Line) -> None:
        """Apply a line. If it lowers the flag, the flag is down when this returns."""
        with self._changed:
            self._notices.append(line.notice)
            self.agreements.receive(line)
            waits = self.agreements.awaits_step(line)
            self._set_state(apply(self._received, line, time.monotonic(), waits_for_step=waits))

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

    def checkpoint_saved(self, step: int | None, seconds: float | None) -> bool:
        """Record that a checkpoint is on disk, to be reported. Return whether it may be the one that is asked for."""
        with self._changed:
            if self._is_another(step):
                self._saved_beside(step, seconds)
                return False
            generation = self.state.directive.generation
            self.step = self.step if step is None else step
            took = self._learn_save(seconds)
            self._failure = ""
            self._outcome = Report(ReportKind.SAVED, self.member, step, generation, checkpoint_seconds=took)
            self._saved_at_signal = self._outcome if self._is_terminated else None
            saved = replace(self._received, saved_for=generation, saved_after_signal=self._is_terminated)
            self._set_state(saved)
            return True

    def checkpoint_failed(self, step: int | None, error: str) -> None:
        """Record why a checkpoint could not be saved, to be reported."""
        with self._changed:
            answers = self.state.directive.is_final and not self._is_another(step)
            generation = self.state.directive.generation if answers else _NO_STOP
            if answers:
                self._failure = error
            if answers or not self._is_answering():
                step = self._present_step() if step is None else step
                self._outcome = Report(ReportKind.FAILED, self.member, step, generation, error=error)
            self._wake()

    def stop_at(self, step: int) -> None:
        """Record that `should_stop(step)` is True: a stop is answered by a checkpoint of this step."""
        with self._changed:
            if self._stopped_at is None:
                self._stopped_at = step

    def resumed(self, step: int) -> None:
        """Record the step that this run starts from, to be reported."""
        with self._changed:
            self._resumed = Report(ReportKind.RESUMED, self.member, step, self.state.directive.generation)
            self._wake()

    def terminate(self) -> None:
        """Treat SIGTERM as a LEAVE.

        This runs in a signal handler, so it takes no lock and wakes no thread: the script may be interrupted anywhere,
        even while it wakes the threads.
        """
        self._is_terminated = True
        flag.lower()
        gates.open_gate(Purpose.STOP)

    def set_collective(self) -> None:
        """Record that a checkpoint needs all ranks."""
        with self._changed:
            self._set_member(replace(self.member, collective=True))

    def set_rank(self, rank: int | None, world_size: int | None = None) -> None:
        """Record the result of a poll."""
        with self._changed:
            if not self._has_polled_rank:
                self._has_polled_rank = True
                self._wake()
            self._set_member(replace(self.member, rank=rank, world_size=world_size))

    def learn_step_seconds(self, seconds: float | None) -> None:
        """Record how long a step takes. Each change is a report, so changes that matter to no decision are left out."""
        known = self.member.step_seconds
        if seconds is None or (known is not None and known / _NEWS < seconds < known * _NEWS):
            return
        with self._changed:
            self._set_member(replace(self.member, step_seconds=seconds))

    def join(self, purpose: Purpose) -> None:
        """Record that the script has called the function of `purpose` with a step."""
        with self._changed:
            if purpose not in self.member.agrees:
                self.agreements.join(purpose)
                self._set_member(replace(self.member, agrees=(*self.member.agrees, purpose)))
                self._set_gates()

    def wait_at(self, purpose: Purpose, step: int, seconds: float) -> Position | None:
        """Return the agreement that must be settled at `step`, or None.

        While it is not committed, wait for at most `seconds` until it is, or until it is dropped or moved.
        """
        with self._changed:
            first = self.agreements.at(purpose, step)
            if first is not None and not first.is_committed:
                self._changed.wait_for(
                    lambda: self.agreements.at(purpose, step) is not first or self._stops_alone(), seconds
                )
            return self.agreements.at(purpose, step)

    def settle(self, position: Position, *, outcome: bool | None) -> bool:
        """Record whether all ranks stop or save now, and return it. None: nobody but the supervisor has said so."""
        purpose = position.agreement.purpose
        with self._changed:
            reached = self.agreements.settle(position, outcome=outcome)
            if reached and purpose.directive is not None:
                self._is_ending |= purpose is not Purpose.CHECKPOINT
                self._save_began = time.monotonic()
                self._set_state(take_effect(self._received, self.agreements.directives[purpose]))
            else:
                self._set_gates()
                self._wake()
            return reached

    def wants_alone(self, purpose: Purpose) -> bool:
        """Return whether this process stops or saves for a reason other than an agreement that is still to come."""
        if purpose is Purpose.REGROUP:
            return False
        with self._changed:
            stops = self._has_stopped() or self._stops_alone()
            wants = stops if purpose is Purpose.STOP else self._saves_alone()
            self._is_ending |= wants and purpose is Purpose.STOP
            if wants and self._save_began is None:
                self._save_began = time.monotonic()
            return wants

    def wait_for_rank(self, seconds: float) -> int | None:
        """Wait until the rank has been polled once, at most `seconds`, and return it."""
        self.wait_for(lambda: self._has_polled_rank, seconds)
        return self.member.rank

    def hello(self) -> Hello:
        """Return the hello of a new stream."""
        return Hello(self.member, self.step, self.agreements.held.newest)

    def stream_opened(self, said: Member) -> None:
        """Record that a stream is open, and what its hello said."""
        with self._changed:
            self._has_stream, self._reported = True, said
            self.streams += 1
            self.agreements.stream_opened()
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

    @property
    def awaits_agent(self) -> bool:
        """Whether this process has stopped for the next round, so that its elastic agent will end it."""
        return self.agreements.awaits_agent

    def hold(self, purpose: Purpose) -> None:
        """Answer that this process waits for the next round, after the report of its checkpoint."""
        with self._changed:
            self._holds = purpose
            self._hold_after_save()

    @property
    def awaits_stop(self) -> bool:
        """Whether a STOP for this process may be on its way: SIGTERM may come before it, as at a preemption."""
        decided = self._received.directive.is_final or self.is_released
        return self._is_terminated and self._has_stream and self.member.rank == 0 and not decided

    def answer_stop(self) -> None:
        """Report the checkpoint of after SIGTERM as the answer to a STOP that came after it."""
        with self._changed:
            directive, saved = self._received.directive, self._saved_at_signal
            if directive.kind is DirectiveKind.STOP and saved is not None and saved.generation != directive.generation:
                self._outcome = self._saved_at_signal = replace(saved, generation=directive.generation)
                self._set_state(replace(self._received, saved_for=directive.generation))

    def left(self) -> Report:
        """Return the report that this process exits."""
        self._is_ending = True
        step = self._present_step() if self._failure else self.step
        return Report(ReportKind.LEFT, self.member, step, self.state.directive.generation, error=self._failure)

    def unreported_outcome(self) -> Report | None:
        """Return the report of the last save if it is not known to be delivered."""
        with self._changed:
            return self._outcome

    def next_report(self) -> Report | None:
        """Return the next report to send: the outcome of a save first, then a changed rank."""
        with self._changed:
            if self.run_is_over:
                return None
            if self._outcome is not None or self._resumed is not None:
                return self._outcome or self._resumed
            if self._has_stream and self.member != self._reported:
                return Report(ReportKind.RANK, self.member, self.step, self.state.directive.generation)
            return None

    def confirm(self, report: Report) -> None:
        """Record that a report from `next_report` was delivered."""
        with self._changed:
            self._reported = report.member
            if self._outcome is report:
                self._outcome = None
                self._hold_after_save()
            if self._resumed is report:
                self._resumed = None

    def next_reply(self) -> Position | None:
        """Return the position that is to be reported next."""
        with self._changed:
            return None if self.run_is_over else self.agreements.next_unsent()

    def confirm_reply(self, position: Position) -> None:
        """Record that a position was reported."""
        with self._changed:
            self.agreements.confirm(position)

    def repeat_replies(self) -> None:
        """Report all present positions again."""
        with self._changed:
            self.agreements.repeat()

    def take_saves(self) -> list[float]:
        """Return the seconds that the checkpoints since the last call have taken."""
        with self._changed:
            saves, self._saves = self._saves, []
            return saves

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

    def _stops_alone(self) -> bool:
        return self.state.directive.is_final and not self.member.collective

    def _has_stopped(self) -> bool:
        return self._received.is_agreed and self._received.directive.is_final

    def _saves_alone(self) -> bool:
        return self.state.wants_checkpoint and not self.state.is_agreed and not self.member.collective

    def _hold_after_save(self) -> None:
        """Answer that this process holds once its checkpoint is known to be reported: the supervisor then ends it."""
        if self._holds is not None and self._outcome is None:
            self.agreements.hold(self._holds)
            self._holds = None
            self._wake()

    def _is_another(self, step: int | None) -> bool:
        """Whether a checkpoint of `step` is not the one that the stop of this process asks for.

        At an agreed step only that step's is. Otherwise an older one is not, as far as the script tells its steps.
        """
        if step is None or not self.state.directive.is_final:
            return False
        wanted = self._present_step() if self._stopped_at is None else self._stopped_at
        if wanted is None:
            return False
        return step != wanted if self._received.is_agreed else step < wanted

    def _present_step(self) -> int | None:
        with contextlib.suppress(TypeError):
            return gates.finished_steps() if self._stopped_at is None else self._stopped_at
        return None

    def _is_answering(self) -> bool:
        """Whether a report that answers the present stop is still to be delivered."""
        outcome, directive = self._outcome, self.state.directive
        return outcome is not None and directive.is_final and outcome.generation == directive.generation

    def _saved_beside(self, step: int | None, seconds: float | None) -> None:
        """Record a checkpoint that does not answer the stop, such as one that was begun some steps before."""
        if step is not None and (self.step is None or step > self.step):
            self.step = step
        if not self._is_answering():
            self._outcome = Report(ReportKind.SAVED, self.member, step, _NO_STOP, checkpoint_seconds=seconds)
        self._wake()

    def _learn_save(self, seconds: float | None) -> float | None:
        if seconds is None and self._save_began is not None:
            seconds = time.monotonic() - self._save_began
        self._save_began = None
        if seconds is not None:
            self._saves.append(seconds)
        return seconds

    def _set_member(self, member: Member) -> None:
        if member != self.member:
            self.member = replace(member, revision=self.member.revision + 1)
            self._wake()

    def _set_state(self, state: State) -> None:
        # Set the state first: a thread that sees the flag down must find the directive that lowered it.
        self._received = state
        if state.directive.is_final:
            flag.lower()
        self._set_gates()
        self._wake()

    def _set_gates(self) -> None:
        """Let the functions ask exactly while there is something to ask for."""
        asks = {Purpose.STOP: self.state.directive.is_final, Purpose.CHECKPOINT: self._saves_alone()}
        for purpose in self.member.agrees:
            if asks.get(purpose, False):
                gates.open_gate(purpose)
            else:
                gates.place(purpose, self.agreements.held.gate(purpose))
        if self._is_terminated:  # a signal may have arrived since the state was read
            gates.open_gate(Purpose.STOP)

    def _wake(self) -> None:
        self._version += 1
        self._changed.notify_all()
