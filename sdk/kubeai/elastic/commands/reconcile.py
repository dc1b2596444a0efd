"""Decides the next step of kubeai-run.

Defines its state, the transitions, and a pure function from the state to the step.

``reconcile`` is called again after every step and every event, so each step only needs to be safe now. In order: the
order's exclusions are applied first; then a command that should not run is ended; then the end of the last run is
classified as a STOP or a failure; then the next run is started. Instants are seconds of one monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .orders import TIMED_OUT_PHASE, JobResult, RunExitCode, RunOrder, RunOrderKind

_SIGNALLED = (RunExitCode.TERMINATED, RunExitCode.INTERRUPTED)


@dataclass(frozen=True)
class RecordedStop:
    """A STOP of a run, recorded by a training process. It is valid even while the supervisor is unreachable."""

    run: int
    generation: int


@dataclass(frozen=True)
class CommandEnd:
    """How the last run's command ended.

    Attributes:
        exit_code: The command's exit code, or minus the signal that ended it.
        at: When it ended.
        delay: Seconds to wait before a restart if this end is a failure.
        asked: We had asked the command to end, so its exit code means nothing.
        confirmed: The supervisor has confirmed that it knows of this end.
    """

    exit_code: int
    at: float
    delay: float
    asked: bool = False
    confirmed: bool = False


@dataclass(frozen=True)
class RunnerState:
    """The present state of one job.

    Attributes:
        began_at: When kubeai-run started to register the job.
        order: The last order; None until the job is registered.
        fresh: The order came on the stream that is open now.
        in_place: The order's exclusions are applied.
        applied: Generation of the last order whose exclusions were applied.
        blocked_until: The last attempt to write files or start a command failed; do not retry before.
        run: The last run that was started; 0 = none.
        running: Its command is running.
        end_asked_at: When the running command's group was asked to end.
        kill_asked: The running command's group was killed.
        end: How the last run's command ended; None while it runs or if none was started.
        stopped_by: Generation of the decision that ended or will end the last run, so that its end is no failure.
        restarts: Failures that led to a restart.
        leaving: The exit code of kubeai-run, which will start nothing again; None while the job goes on.
        save_asked_at: When the end of the job was requested while its command ran, which may save first.
        impatient: The end was requested again after the command's group was asked to end.
    """

    began_at: float
    order: RunOrder | None = None
    fresh: bool = False
    in_place: bool = False
    applied: int = 0
    blocked_until: float = 0.0
    run: int = 0
    running: bool = False
    end_asked_at: float | None = None
    kill_asked: bool = False
    end: CommandEnd | None = None
    stopped_by: int | None = None
    restarts: int = 0
    leaving: RunExitCode | None = None
    save_asked_at: float | None = None
    impatient: bool = False

    @property
    def ending(self) -> bool:
        """Whether somebody has requested the end of the job."""
        return self.leaving in _SIGNALLED

    def ordered(self, order: RunOrder) -> RunnerState:
        """Return the state after an order, which replaces the previous one."""
        present = replace(self, order=order, fresh=True, in_place=False, blocked_until=0.0)
        # A decided STOP is never withdrawn, so a later order need not repeat it.
        is_stop = order.stopping and order.run == self.run
        # Suspended although the command ended by itself: the announcement of that STOP was never received.
        is_suspension = order.kind is RunOrderKind.WAIT and self.end is not None
        return present.with_stop(order.generation) if is_stop or is_suspension else present

    def with_stop(self, generation: int) -> RunnerState:
        """Record that the end of the last run, past or to come, is a stop that was decided at this generation."""
        return replace(self, stopped_by=max(generation, self.stopped_by or 0))

    def started(self, run: int, *, restart: bool) -> RunnerState:
        """Record that a run's command was started."""
        return replace(
            self,
            run=run,
            running=True,
            end_asked_at=None,
            kill_asked=False,
            end=None,
            stopped_by=None,
            restarts=self.restarts + 1 if restart else self.restarts,
        )

    def asked_to_end(self, now: float) -> RunnerState:
        """Record that the running command's group was asked to end."""
        asked = replace(self, end_asked_at=now)
        return asked.with_stop(self.order.generation) if self.order else asked

    def ended(self, exit_code: int, now: float, delay: float, stop: RecordedStop | None) -> RunnerState:
        """Record that the command has ended. ``stop`` is the STOP that a training process recorded, if any."""
        end = CommandEnd(exit_code, at=now, delay=delay, asked=self.end_asked_at is not None)
        present = replace(self, running=False, end=end)
        return present.with_stop(stop.generation) if stop and stop.run == self.run else present

    def confirmed_end(self, run: int) -> RunnerState:
        """Record that the supervisor knows how this run ended."""
        if self.end is None or run != self.run:
            return self
        return replace(self, end=replace(self.end, confirmed=True))

    def leave(self, code: RunExitCode, save_from: float | None = None) -> RunnerState:
        """Record a request to end the job. A repeated one ends a save, and a further one kills the command at once.

        Args:
            code: The exit code of kubeai-run.
            save_from: The present time, if a running command may save a checkpoint before it is ended.
        """
        if self.leaving is None:
            may_save = self.running and self.end_asked_at is None
            return replace(self, leaving=code, save_asked_at=save_from if may_save else None)
        if self.save_asked_at is not None and self.end_asked_at is None:
            return replace(self, save_asked_at=None)
        return replace(self, impatient=True)


@dataclass(frozen=True)
class RunLimits:
    """The limits that the user set, in seconds except for the first.

    Attributes:
        restarts: Failures that are followed by a restart.
        register: To reach the supervisor at the start.
        save: For a checkpoint, from a request to end the job until the command's group is asked to end.
        stop: From asking a command's group to end until it is killed.
        offline: For the supervisor to return and say that an end was a STOP.
        settle: For an order in flight when a command ends; processes may receive a STOP slightly earlier.
    """

    restarts: int = 6
    register: float = 60.0
    save: float = 60.0
    stop: float = 10.0
    offline: float = 30.0
    settle: float = 0.5


class RunStep:
    """Base class of all steps."""


@dataclass(frozen=True)
class Wait(RunStep):
    """Do nothing until the next event, or until an instant."""

    until: float | None = None


@dataclass(frozen=True)
class Apply(RunStep):
    """Write the order's hosts, exclusions and token."""

    order: RunOrder


@dataclass(frozen=True)
class Start(RunStep):
    """Start the command as this run. ``restart`` means that the previous run failed."""

    run: int
    restart: bool = False


@dataclass(frozen=True)
class Terminate(RunStep):
    """Ask the command's group to end, and log ``message`` if there is one."""

    message: str = ""


@dataclass(frozen=True)
class KillCommand(RunStep):
    """Kill the command's group."""


@dataclass(frozen=True)
class Finish(RunStep):
    """Report the result, if there is one, and exit with this code."""

    code: RunExitCode
    result: JobResult | None


def reconcile(state: RunnerState, limits: RunLimits, now: float) -> RunStep:
    """Decide the next step."""
    order = state.order
    if order is not None and not state.in_place and now >= state.blocked_until:
        return Apply(order)
    if not state.running and state.end is not None and state.end.exit_code == 0 and not state.end.asked:
        return Finish(RunExitCode.SUCCEEDED, JobResult.SUCCEEDED)
    if state.leaving is not None:
        return _leave(state, state.leaving, limits, now)
    if order is None:
        deadline = state.began_at + limits.register
        return Wait(deadline) if now < deadline else Finish(RunExitCode.UNREACHED, None)
    if not state.running:
        return _after_exit(state, order, limits, now)
    if _is_wanted(state) and state.end_asked_at is None:
        return Wait(None if state.in_place else state.blocked_until)
    return _end_command(state, limits, now)


def _leave(state: RunnerState, code: RunExitCode, limits: RunLimits, now: float) -> RunStep:
    if not state.running:
        return Finish(code, JobResult.TERMINATED if state.ending else None)
    if state.save_asked_at is None or state.end_asked_at is not None or not _is_wanted(state):
        return _end_command(state, limits, now)
    # The order changes once rank 0 has saved: the supervisor stops it, as before a reclaim.
    deadline = state.save_asked_at + limits.save
    if now < deadline:
        return Wait(deadline if state.in_place else min(deadline, state.blocked_until))
    why = "no checkpoint was reported" if state.fresh else "the supervisor is unreachable"
    return Terminate(f"{why} after {limits.save:g} s: ending run {state.run} without a checkpoint")


def _is_wanted(state: RunnerState) -> bool:
    """Whether the order allows the running command to continue."""
    order = state.order
    return order is not None and order.kind is RunOrderKind.RUN and order.run <= state.run


def _end_command(state: RunnerState, limits: RunLimits, now: float) -> RunStep:
    if state.end_asked_at is None:
        return Terminate()
    if state.kill_asked:
        return Wait()
    deadline = state.end_asked_at + limits.stop
    return KillCommand() if state.impatient or now >= deadline else Wait(deadline)


def _after_exit(state: RunnerState, order: RunOrder, limits: RunLimits, now: float) -> RunStep:
    end = state.end
    if order.kind is RunOrderKind.END:
        is_timed_out = order.phase == TIMED_OUT_PHASE
        code = RunExitCode.TIMED_OUT if is_timed_out else RunExitCode.TERMINATED
        return Finish(code, JobResult.TIMED_OUT if is_timed_out else JobResult.TERMINATED)
    if order.kind is RunOrderKind.WAIT:
        return Wait(None if state.in_place else state.blocked_until)
    if end is not None and not end.asked and state.stopped_by is None:
        return _after_a_failure(state, order, end, limits, now)
    if order.run > state.run or end is None:
        # Do not start a run that must stop at once; the next order says what follows.
        return Wait() if order.stopping else _start(state, Start(order.run), now)
    # An order that is newer than the stop and lets the same run continue comes from a supervisor that withdrew the stop
    # before it happened. Older orders, or those that still announce the stop, change nothing.
    if order.generation > (state.stopped_by or 0) and not order.stopping:
        return _start(state, Start(state.run + 1), now)
    return Wait()


def _after_a_failure(state: RunnerState, order: RunOrder, end: CommandEnd, limits: RunLimits, now: float) -> RunStep:
    """Wait for a possible STOP, then for the back-off, then start the next run or give up.

    The supervisor orders the next run as soon as it knows of the failure. The back-off and its limit are applied here.
    """
    in_contact = state.fresh and end.confirmed
    certain_at = end.at + (limits.settle if in_contact else limits.offline)
    if now < certain_at:
        return Wait(certain_at)
    if state.restarts >= limits.restarts:
        return Finish(RunExitCode.BACK_OFF_LIMIT, JobResult.FAILED)
    if order.stopping and order.run > state.run:
        return Wait()
    due = max(certain_at, end.at + end.delay)
    return Wait(due) if now < due else _start(state, Start(max(order.run, state.run + 1), restart=True), now)


def _start(state: RunnerState, start: Start, now: float) -> RunStep:
    """Start, unless the exclusions are not applied: a command must never see a host that it must leave out."""
    return start if state.in_place and now >= state.blocked_until else Wait(state.blocked_until)
