"""Applies the supervisor's lines to this process: from its stream to the flag behind `check_alive()`.

`StreamListener` reads the lines, pure functions of state, line and time apply them to `ReceivedState`, and `Monitor`
shares the result with the training script and the threads that report. Times are seconds of the monotonic clock.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from . import gates, threads
from .agreement import Participant
from .messages import (
    DIRECTIVE_OF,
    Directive,
    DirectiveKind,
    MalformedDirective,
    Notice,
    ProcessHello,
    ProcessReport,
    ProcessReportKind,
    RankMember,
    StepPurpose,
    parse_line,
)
from .spending import ProcessTime, Spending
from .uplink import CallRetry, RunIsOver
from .wire import CallRefused, Unreachable, WireStream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .agreement import RankPosition
    from .messages import DirectiveLine
    from .spending import TimeSpent
    from .threads import StderrLog
    from .uplink import ProcessUplink

_FIRST_RANK_SECONDS = 1.0  # without a rank in the hello, the supervisor would briefly not know rank 0
_MAX_NOTICES = 64  # queued while a callback is running; the oldest are dropped
_NO_STOP = 0  # the generation of a report that answers no stop
_NEWS = 1.5  # a step or a change takes so many times as long as before, or as short

NO_DIRECTIVE = Directive(DirectiveKind.RUN, job="", run=0, generation=0, reason="no directive received yet")

# The flag: one byte of anonymous shared memory. Data loader workers and other forked children see it fall without a
# thread or a connection of their own. Reading it takes 33 to 38 ns and no lock.
# A module variable, because an attribute of an object would cost every check_alive() another look-up.
_byte: bytes | mmap.mmap = b"\0"


def check_alive() -> bool:
    """Return whether training may continue. Once a LEAVE or STOP has taken effect it is False forever. Never raises.

    Cheap enough for every batch. When it is False, save a checkpoint and exit with a non-zero code.
    """
    try:
        return not _byte[0]
    except Exception:  # noqa: BLE001 - a finalizer may call it after the interpreter has cleared this module
        return True


def share_flag() -> None:
    """Create the flag that this process shares with its children. Raises OSError if the memory cannot be mapped."""
    global _byte  # noqa: PLW0603 - see above
    _byte = mmap.mmap(-1, 1)


def lower_flag() -> None:
    """Lower the flag here and in all children forked since `share_flag`."""
    if isinstance(_byte, mmap.mmap):
        _byte[0] = 1


@dataclass(frozen=True)
class ReceivedState:
    """The state that results from everything received.

    `pending` takes effect at `due` unless a later line replaces it. `deadline` is when the first noticed host is gone,
    `notice_deadline` when that of `notice` is. `is_agreed`: the directive came at an agreed step. `max_wait` is how
    long the job waits to be resumed after a stop, in seconds; None for any time.
    """

    directive: Directive = NO_DIRECTIVE
    is_agreed: bool = False
    pending: Directive | None = None
    due: float = 0.0
    deadline: float | None = None
    notice: Notice | None = None
    notice_deadline: float | None = None
    release: bool = False
    saved_for: int | None = None
    saved_after_signal: bool = False
    max_wait: float | None = None

    @property
    def wants_checkpoint(self) -> bool:
        """Whether the directive requests a checkpoint that has not been reported as saved."""
        return self.directive.kind is not DirectiveKind.RUN and self.saved_for != self.directive.generation

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds until the first noticed host is gone, at least 0; None if that is unknown."""
        deadline = self.notice_deadline if self.deadline is None else self.deadline
        return None if deadline is None else max(0.0, deadline - now)

    def notice_at(self, now: float) -> Notice | None:
        """Return the notice with `seconds_left` as of `now`."""
        if self.notice is None or self.notice_deadline is None:
            return self.notice
        return replace(self.notice, seconds_left=max(0.0, self.notice_deadline - now))


def apply(state: ReceivedState, line: DirectiveLine, now: float, *, waits_for_step: bool = False) -> ReceivedState:
    """Return the state after `line` was received at `now`.

    The latest line wins, except over a STOP or LEAVE in effect.

    Args:
        state: The state before.
        line: What was received.
        now: When it was received.
        waits_for_step: The directive takes effect at an agreed step and not by time.
    """
    left = None if line.notice is None else line.notice.seconds_left
    notice_deadline = None if left is None else now + left
    received = replace(
        state, notice=line.notice, notice_deadline=notice_deadline, release=line.release, max_wait=line.max_wait
    )
    if state.directive.is_final:
        return received
    deadline = None if line.seconds_left is None else now + line.seconds_left
    if waits_for_step:
        return replace(received, pending=None, deadline=deadline)
    return advance(replace(received, pending=line.directive, due=now + line.act_in, deadline=deadline), now)


def apply_annotation(state: ReceivedState, directive: Directive, *, is_news: bool) -> ReceivedState:
    """Return the state after a directive from the pod's annotation. A newer one of the supervisor wins.

    Only the supervisor can say whether a directive that is not new is for this run.
    """
    last = state.directive if state.pending is None else state.pending
    is_ours = is_news if last == NO_DIRECTIVE else directive.run == last.run
    if state.directive.is_final or not is_ours or directive.generation < last.generation:
        return state
    return replace(state, directive=replace(directive, job=last.job), pending=None, is_agreed=False)


def advance(state: ReceivedState, now: float) -> ReceivedState:
    """Return the state at `now`: a pending directive that is due has taken effect."""
    new = state.pending
    if new is None or now < state.due:
        return state
    is_same = (new.kind, new.generation) == (state.directive.kind, state.directive.generation)
    return replace(state, directive=new, pending=None, is_agreed=state.is_agreed and is_same)


class Monitor:
    """The state that the library's threads and the training script share, and the reports that are not sent yet.

    Every change takes one condition and wakes all waiters. The received state is immutable and replaced as a whole, so
    the script and forked children read it without a lock, as they do all attributes.
    """

    def __init__(self) -> None:
        self.member = RankMember()
        self.step: int | None = None
        self.run_is_over = False
        self.streams = 0
        self.agreements = Participant()
        self.outcome: ProcessReport | None = None  # of the last save, until it is known to be delivered
        self.time = ProcessTime(time.monotonic())
        self.saves: deque[float] = deque()  # how many seconds each took, until `AgreementReplies` takes them
        # The notice of each line, None for a line without one, until `Reporter` takes them.
        self.notices: deque[Notice | None] = deque(maxlen=_MAX_NOTICES)
        # Reentrant (the default), because a signal handler may call `checkpoint_saved`.
        self._changed = threading.Condition()
        self._received = ReceivedState()
        self._is_terminated = False
        self._is_ending = False  # the script knows that it must stop, or exits
        self._version = 0
        self.has_polled_rank = False
        self._has_stream = False
        self._reported: RankMember | None = None
        self._stopped_at: int | None = None  # the step after which `should_stop` was True first
        self._failure = ""  # why the checkpoint that a stop asks for could not be saved
        self._saved_at_signal: ProcessReport | None = None  # the last one after SIGTERM; training ends with it
        self._holds: StepPurpose | None = None  # the answer waits for the report of the checkpoint
        self._resumed: ProcessReport | None = None
        self._save_began: float | None = None
        self._owes_spent = False

    @property
    def state(self) -> ReceivedState:
        """The received state, with a LEAVE if SIGTERM has come. A LEAVE or STOP of the supervisor takes precedence."""
        received = self._received
        if not self._is_terminated or received.directive.is_final:
            return received
        # The generation stays, because the supervisor decided nothing.
        leave = replace(received.directive, kind=DirectiveKind.LEAVE, reason="SIGTERM has arrived")
        saved_for = leave.generation if received.saved_after_signal else None
        return replace(received, directive=leave, is_agreed=False, saved_for=saved_for)

    @property
    def is_released(self) -> bool:
        """Whether the job is suspended or over, so that nothing is left to wait for."""
        return self.state.release or self.run_is_over

    @property
    def is_awaited(self) -> bool:
        """Whether the supervisor waits until the script calls `should_stop` or `should_checkpoint` with a step."""
        return not self._is_ending and (self.state.directive.is_final or self.agreements.is_awaited())

    @property
    def stops_for_round(self) -> bool:
        """Whether this process has stopped for the next round of its job, so that its elastic agent will end it."""
        position = self.agreements.held.positions.get(StepPurpose.RENDEZVOUS)
        return position is not None and position.is_settled and position.is_committed

    # What arrives.

    def receive(self, line: DirectiveLine) -> None:
        """Apply a line. If it lowers the flag, the flag is down when this returns."""
        with self._changed:
            self.notices.append(line.notice)
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
                state = advance(self._received, now)
                if state is not self._received:
                    self._set_state(state)
                wait = threading.TIMEOUT_MAX if state.pending is None else state.due - now
                self._changed.wait(wait if seconds is None else min(wait, seconds))

    def terminate(self) -> None:
        """Treat SIGTERM as a LEAVE.

        This runs in a signal handler, so it takes no lock and wakes no thread: the script may be interrupted anywhere,
        even while it wakes the threads.
        """
        self._is_terminated = True
        lower_flag()
        gates.place(StepPurpose.STOP, gates.ALWAYS)

    def set_stream(self, hello: RankMember | None) -> None:
        """Record that a stream is open, with the member in its hello. None records that the stream has ended."""
        with self._changed:
            self._has_stream = hello is not None
            if hello is not None:
                self._reported = hello
                self.streams += 1
                self.agreements.sent.clear()  # the supervisor at its other end may not know the answers
                self._wake()

    def end_run(self) -> None:
        """Record that the run is over for the supervisor."""
        with self._changed:
            self.run_is_over = True
            self._wake()

    def _set_state(self, state: ReceivedState) -> None:
        # Set the state first: a thread that sees the flag down must find the directive that lowered it.
        self._received = state
        if state.directive.is_final:
            lower_flag()
            if not self.stops_for_round:
                self.time.stop(time.monotonic())
        self._set_gates()
        self._wake()

    def _set_gates(self) -> None:
        """Open the gate of each function exactly while the function may have to stop, save or wait."""
        asks = {StepPurpose.STOP: self.state.directive.is_final, StepPurpose.CHECKPOINT: self._saves_alone()}
        for purpose in self.member.agrees:
            gate = gates.ALWAYS if asks.get(purpose, False) else self.agreements.held.gate(purpose)
            gates.place(purpose, gates.NEVER if gate is None else gate)
        if self._is_terminated:  # a signal may have arrived since the state was read
            gates.place(StepPurpose.STOP, gates.ALWAYS)

    def _wake(self) -> None:
        self._version += 1
        self._changed.notify_all()

    # What the script does.

    def set_member(self, **changes: Any) -> None:
        """Record a change of the fields of `member`, to be reported."""
        with self._changed:
            changed = replace(self.member, **changes)
            if changed != self.member:
                self.member = replace(changed, revision=self.member.revision + 1)
                self._wake()

    def set_rank(self, rank: int | None, world_size: int | None = None) -> None:
        """Record the rank and the world size that a poll has found."""
        with self._changed:
            if not self.has_polled_rank:
                self.has_polled_rank = True
                self._wake()
            self.set_member(rank=rank, world_size=world_size)

    def learn_pace(self, step_seconds: float | None) -> None:
        """Record how long a step takes, and a change of rounds.

        Each change of them is a report, so those that matter to no decision are left out.
        """
        with self._changed:
            for name, seconds in (("step_seconds", step_seconds), ("change_seconds", self.time.change_seconds)):
                known = getattr(self.member, name)
                if seconds is not None and (known is None or not known / _NEWS < seconds < known * _NEWS):
                    self.set_member(**{name: seconds})

    def join(self, purpose: StepPurpose) -> None:
        """Record that the script has called the function of `purpose` with a step."""
        with self._changed:
            if purpose not in self.member.agrees:
                self.agreements.join(purpose)
                self.set_member(agrees=(*self.member.agrees, purpose))
                self._set_gates()

    def wait_at(self, purpose: StepPurpose, step: int, seconds: float) -> RankPosition | None:
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

    def settle(self, position: RankPosition, *, outcome: bool | None) -> bool:
        """Record whether all ranks stop or save now, and return it. For None, the supervisor's last line decides."""
        purpose = position.agreement.purpose
        with self._changed:
            reached = self.agreements.settle(position, outcome=outcome)
            if reached and purpose in DIRECTIVE_OF:
                self._is_ending |= purpose is not StepPurpose.CHECKPOINT
                self._save_began = time.monotonic()
                directive = self.agreements.directives[purpose]
                self._set_state(replace(self._received, directive=directive, pending=None, is_agreed=True))
            else:
                self._set_gates()
                self._wake()
            return reached

    def wants_alone(self, purpose: StepPurpose) -> bool:
        """Return whether this process stops or saves for a reason other than an agreement that is still to come."""
        if purpose is StepPurpose.REGROUP:
            return False
        with self._changed:
            if purpose is StepPurpose.STOP:
                wants = (self._received.is_agreed and self._received.directive.is_final) or self._stops_alone()
                self._is_ending |= wants
            else:
                wants = self._saves_alone()
            if wants and self._save_began is None:
                self._save_began = time.monotonic()
            return wants

    def _stops_alone(self) -> bool:
        return self.state.directive.is_final and not self.member.collective

    def _saves_alone(self) -> bool:
        return self.state.wants_checkpoint and not self.state.is_agreed and not self.member.collective

    def finished(self, step: int | None) -> None:
        """Record a sample of the finished steps."""
        if step is not None:
            with self._changed:
                self.time.finished(step, time.monotonic())

    def spend(self, spending: Spending, seconds: float) -> None:
        """Record that seconds which have just passed were spent on something else than steps."""
        with self._changed:
            step = gates.finished_steps()
            if step is not None:  # No sample may have seen it yet.
                self.time.finished(step, time.monotonic() - seconds)
            self.time.spend(spending, seconds)

    def stop_at(self, step: int) -> None:
        """Record that `should_stop(step)` is True: only a checkpoint of this step answers the stop."""
        with self._changed:
            if self._stopped_at is None:
                self._stopped_at = step

    def checkpoint_saved(self, step: int | None, seconds: float | None) -> bool:
        """Record that a checkpoint is on disk, to be reported. Return whether it may be the requested one."""
        with self._changed:
            if seconds is None and self._save_began is not None and not self._is_another(step):
                seconds = time.monotonic() - self._save_began
            if seconds is not None and not self._has_gone_on(step):
                self.time.spend(Spending.SAVING, seconds)
            if self._is_another(step):
                # It does not answer the stop, such as one that was begun some steps before.
                if step is not None and (self.step is None or step > self.step):
                    self.step = step
                if not self._is_answering():
                    self.outcome = ProcessReport(
                        ProcessReportKind.SAVED, self.member, step, _NO_STOP, checkpoint_seconds=seconds
                    )
                self._wake()
                return False
            generation = self.state.directive.generation
            self.step = self.step if step is None else step
            self._save_began = None
            if seconds is not None:
                self.saves.append(seconds)
            self._failure = ""
            self.outcome = ProcessReport(
                ProcessReportKind.SAVED, self.member, step, generation, checkpoint_seconds=seconds
            )
            self._saved_at_signal = self.outcome if self._is_terminated else None
            self._set_state(replace(self._received, saved_for=generation, saved_after_signal=self._is_terminated))
            return True

    def state_kept(self, step: int, seconds: float) -> None:
        """Record that the state of the step at which all ranks stop is kept in memory, to be reported."""
        with self._changed:
            generation = self.state.directive.generation
            self.time.spend(Spending.SAVING, seconds)
            self._save_began, self._failure = None, ""
            self.outcome = ProcessReport(ProcessReportKind.KEPT, self.member, step, generation)
            self._set_state(replace(self._received, saved_for=generation))

    def checkpoint_failed(self, step: int | None, error: str) -> None:
        """Record why a checkpoint could not be saved, to be reported."""
        with self._changed:
            answers = self.state.directive.is_final and not self._is_another(step)
            generation = self.state.directive.generation if answers else _NO_STOP
            self._failure = error if answers else self._failure
            if answers or not self._is_answering():
                step = self._present_step() if step is None else step
                self.outcome = ProcessReport(ProcessReportKind.FAILED, self.member, step, generation, error=error)
            self._wake()

    def resumed(self, step: int) -> None:
        """Record the step that this run starts from, to be reported."""
        with self._changed:
            generation = self.state.directive.generation
            self._resumed = ProcessReport(ProcessReportKind.RESUMED, self.member, step, generation)
            self.time.resumed(step)
            self._wake()

    def hold(self, purpose: StepPurpose | None) -> None:
        """Answer that this process waits for the next round, once the report of its checkpoint is delivered.

        The supervisor then ends the process. None: it does not wait.
        """
        with self._changed:
            self._holds = purpose
            if purpose is not None and self.outcome is None:
                self.agreements.hold(purpose)
                self._holds = None
                self._wake()

    def await_stop(self, seconds: float) -> None:
        """Wait while a STOP for this process may be on its way: SIGTERM may come before it, as at a preemption.

        Report the checkpoint of after SIGTERM as the answer to a STOP that has come.
        """

        def may_come() -> bool:
            decided = self._received.directive.is_final or self.is_released
            return self._is_terminated and self._has_stream and self.member.rank == 0 and not decided

        if not may_come():
            return
        self.wait_for(lambda: not may_come(), seconds)
        with self._changed:
            directive, saved = self._received.directive, self._saved_at_signal
            if directive.kind is DirectiveKind.STOP and saved is not None and saved.generation != directive.generation:
                self.outcome = self._saved_at_signal = replace(saved, generation=directive.generation)
                self._set_state(replace(self._received, saved_for=directive.generation))

    @staticmethod
    def _has_gone_on(step: int | None) -> bool:
        """Return whether steps were made while a checkpoint of `step` was saved, as by a save in the background."""
        with contextlib.suppress(TypeError):
            finished = gates.finished_steps()
            return step is not None and finished is not None and finished > step
        return False

    def _is_another(self, step: int | None) -> bool:
        """Return whether a checkpoint of `step` is not the one that the stop of this process asks for.

        At an agreed step only that step's is. Otherwise an older one is not, as far as the script tells its steps.
        """
        wanted = self._present_step()
        if step is None or wanted is None or not self.state.directive.is_final:
            return False
        return step != wanted if self._received.is_agreed else step < wanted

    def _present_step(self) -> int | None:
        """Return the step at which this process stops, otherwise the last one that the script has finished."""
        if self._stopped_at is None:
            with contextlib.suppress(TypeError):
                return gates.finished_steps()
        return self._stopped_at

    def _is_answering(self) -> bool:
        """Return whether a report that answers the present stop is still to be delivered."""
        outcome, directive = self.outcome, self.state.directive
        return outcome is not None and directive.is_final and outcome.generation == directive.generation

    # What is reported.

    def spent(self) -> TimeSpent | None:
        """Return what the time was spent on so far; None from another rank than 0, or if the script tells no steps."""
        if self.member.rank != 0:
            return None
        with contextlib.suppress(TypeError):  # the script passes a step that is no number
            self.finished(gates.finished_steps())
        with self._changed:
            return self.time.told()

    def owe_spent(self) -> None:
        """Have a report sent that says what the time was spent on, even if there is nothing else to report."""
        with self._changed:
            self._owes_spent = self.member.rank == 0 and self.time.told() is not None

    def left(self) -> ProcessReport:
        """Return the report that this process exits."""
        self._is_ending = True
        step, generation = self._present_step() if self._failure else self.step, self.state.directive.generation
        return ProcessReport(ProcessReportKind.LEFT, self.member, step, generation, error=self._failure)

    def next_report(self) -> ProcessReport | None:
        """Return the next report to send: first the outcome of a save, then a change of the rank."""
        with self._changed:
            if self.run_is_over:
                return None
            if self.outcome is not None or self._resumed is not None:
                return self.outcome or self._resumed
            if self._has_stream and (self.member != self._reported or self._owes_spent):
                generation = self.state.directive.generation
                return ProcessReport(ProcessReportKind.RANK, self.member, self.step, generation)
            return None

    def confirm(self, report: ProcessReport) -> None:
        """Record that a report from `next_report` was delivered."""
        with self._changed:
            self._reported = report.member
            self._owes_spent = False
            if self.outcome is report:
                self.outcome = None
                self.hold(self._holds)
            if self._resumed is report:
                self._resumed = None

    def next_reply(self) -> RankPosition | None:
        """Return the position that is to be reported next."""
        with self._changed:
            unsent = [] if self.run_is_over else list(self.agreements.unsent.values())
            return unsent[-1] if unsent else None  # the most recent answer first

    def confirm_reply(self, position: RankPosition) -> None:
        """Record that a position was reported."""
        with self._changed:
            purpose = position.agreement.purpose
            if self.agreements.unsent.get(purpose) is position:
                del self.agreements.unsent[purpose]

    def repeat_replies(self) -> None:
        """Report all present positions again."""
        with self._changed:
            self.agreements.repeat()

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> None:
        """Wait until `condition()` is true, at most `seconds`."""
        with self._changed:
            self._changed.wait_for(condition, seconds)

    def wait_beyond(self, version: int, seconds: float) -> int:
        """Wait until the version differs from `version`, at most `seconds`, and return the present version."""
        self.wait_for(lambda: self._version != version, seconds)
        return self._version


class StreamListener:
    """The thread that holds the stream: it opens it, applies its lines and reopens it, until the run is over."""

    def __init__(self, monitor: Monitor, uplink: ProcessUplink, stderr: StderrLog) -> None:
        self._monitor = monitor
        self._uplink = uplink
        self._stderr = stderr
        self._retry = CallRetry(stderr)
        self._heard_at = time.monotonic()
        self._stream: WireStream | None = None
        self._is_closed = False
        self._has_noted_stop = False

    def run(self) -> None:
        """Listen until the run is over or `close` is called."""
        self._monitor.wait_for(lambda: self._monitor.has_polled_rank, _FIRST_RANK_SECONDS)
        while not self._is_closed:
            try:
                self._hold_stream()
                pause = self._retry.backoff.next()
            except (CallRefused, Unreachable) as error:
                pause = self._retry.after(error, time.monotonic() - self._heard_at)
            except RunIsOver:
                self._monitor.end_run()
                return
            time.sleep(pause)

    def close(self) -> None:
        """Stop listening. Callable from another thread; the supervisor sees the disconnect at once."""
        self._is_closed = True
        if self._stream is not None:
            self._stream.close()

    def _hold_stream(self) -> None:
        hello = ProcessHello(self._monitor.member, self._monitor.step, self._monitor.agreements.held.newest())
        with self._uplink.open(hello) as stream:
            self._stream = stream
            opened_at = time.monotonic()
            self._monitor.set_stream(hello.member)
            try:
                for message in stream:
                    threads.attempt("a line of the supervisor", self._stderr, functools.partial(self._handle, message))
            finally:
                self._monitor.set_stream(None)
                self._heard_at = time.monotonic()
                self._retry.was_reached(self._heard_at - opened_at)

    def _handle(self, message: Mapping[str, Any]) -> None:
        if message.get("type") != "directive":
            return
        try:
            line = parse_line(message)
        except MalformedDirective as error:
            self._stderr.once("line", f"ignoring a malformed directive: {error}")
            return
        if self._uplink.learned_run is None:
            self._uplink.learned_run = line.directive.run
        self._monitor.receive(line)
        # A launcher must not take a later failure for the stop of a job that goes on in another round.
        goes_on = line.agreement is not None and line.agreement.purpose is StepPurpose.RENDEZVOUS
        if line.directive.kind is DirectiveKind.STOP and not goes_on and not self._has_noted_stop:
            self._has_noted_stop = True
            self._uplink.note_stop(line.directive)
