"""The decision of kubeai-run: a pure function from its state to the next step.

``reconcile`` is called again after every step and every event, so each step only needs to be safe now. In order: the
order's exclusions are applied first; then a command that should not run is ended; then the end of the last run is
classified as a STOP or a failure; then the next run is started.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .exit_codes import ExitCode
from .orders import TIMED_OUT_PHASE, Order, OrderKind, Result

if TYPE_CHECKING:
    from .runner_state import End, RunnerState


@dataclass(frozen=True)
class Limits:
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


class Step:
    """Base class of all steps."""


@dataclass(frozen=True)
class Wait(Step):
    """Do nothing until the next event, or until an instant."""

    until: float | None = None


@dataclass(frozen=True)
class Apply(Step):
    """Write the order's hosts, exclusions and token."""

    order: Order


@dataclass(frozen=True)
class Start(Step):
    """Start the command as this run. ``restart`` means that the previous run failed."""

    run: int
    restart: bool = False


@dataclass(frozen=True)
class Terminate(Step):
    """Ask the command's group to end, and log ``message`` if there is one."""

    message: str = ""


@dataclass(frozen=True)
class Kill(Step):
    """Kill the command's group."""


@dataclass(frozen=True)
class Finish(Step):
    """Report the result, if there is one, and exit with this code."""

    code: ExitCode
    result: Result | None


def reconcile(state: RunnerState, limits: Limits, now: float) -> Step:
    """Decide the next step."""
    order = state.order
    if order is not None and not state.in_place and now >= state.blocked_until:
        return Apply(order)
    if state.leaving is not None:
        return _leave(state, state.leaving, limits, now)
    if order is None:
        return _register(state, limits, now)
    if state.running:
        return _while_running(state, limits, now)
    return _after_exit(state, order, limits, now)


def _leave(state: RunnerState, code: ExitCode, limits: Limits, now: float) -> Step:
    if not state.running:
        return _success(state) or Finish(code, Result.TERMINATED if state.ending else None)
    if state.save_asked_at is None or state.end_asked_at is not None or not _is_wanted(state):
        return _end_command(state, limits, now)
    # The order changes once rank 0 has saved: the supervisor stops it, as before a reclaim.
    deadline = state.save_asked_at + limits.save
    if now < deadline:
        return Wait(deadline if state.in_place else min(deadline, state.blocked_until))
    why = "no checkpoint was reported" if state.fresh else "the supervisor is unreachable"
    return Terminate(f"{why} after {limits.save:g} s: ending run {state.run} without a checkpoint")


def _register(state: RunnerState, limits: Limits, now: float) -> Step:
    deadline = state.began_at + limits.register
    return Wait(deadline) if now < deadline else Finish(ExitCode.UNREACHED, None)


def _while_running(state: RunnerState, limits: Limits, now: float) -> Step:
    if _is_wanted(state) and state.end_asked_at is None:
        return Wait(None if state.in_place else state.blocked_until)
    return _end_command(state, limits, now)


def _is_wanted(state: RunnerState) -> bool:
    """Whether the order allows the running command to continue."""
    order = state.order
    return order is not None and order.kind is OrderKind.RUN and order.run <= state.run


def _end_command(state: RunnerState, limits: Limits, now: float) -> Step:
    if state.end_asked_at is None:
        return Terminate()
    if state.kill_asked:
        return Wait()
    deadline = state.end_asked_at + limits.stop
    return Kill() if state.impatient or now >= deadline else Wait(deadline)


def _after_exit(state: RunnerState, order: Order, limits: Limits, now: float) -> Step:
    end, success = state.end, _success(state)
    if success is not None:
        return success
    if order.kind is OrderKind.END:
        return _ended_by(order)
    if order.kind is OrderKind.WAIT:
        return Wait(None if state.in_place else state.blocked_until)
    if end is not None and not end.asked and state.stopped_by is None:
        return _after_a_failure(state, order, end, limits, now)
    if order.run > state.run or end is None:
        # Do not start a run that must stop at once; the next order says what follows.
        return Wait() if order.stopping else _start(state, Start(order.run), now)
    return _after_a_stop(state, order, state.stopped_by or 0, now)


def _success(state: RunnerState) -> Finish | None:
    """Return the final step if the command has succeeded."""
    end = state.end
    succeeded = end is not None and end.exit_code == 0 and not end.asked
    return Finish(ExitCode.SUCCEEDED, Result.SUCCEEDED) if succeeded else None


def _ended_by(order: Order) -> Finish:
    if order.phase == TIMED_OUT_PHASE:
        return Finish(ExitCode.TIMED_OUT, Result.TIMED_OUT)
    return Finish(ExitCode.TERMINATED, Result.TERMINATED)


def _after_a_stop(state: RunnerState, order: Order, stopped_by: int, now: float) -> Step:
    # An order that is newer than the stop and lets the same run continue comes from a supervisor that withdrew the stop
    # before it happened. Older orders, or those that still announce the stop, change nothing.
    if order.generation > stopped_by and not order.stopping:
        return _start(state, Start(state.run + 1), now)
    return Wait()


def _after_a_failure(state: RunnerState, order: Order, end: End, limits: Limits, now: float) -> Step:
    """Wait for a possible STOP, then for the back-off, then start the next run or give up.

    The supervisor orders the next run as soon as it knows of the failure. The back-off and its limit are applied here.
    """
    in_contact = state.fresh and end.confirmed
    certain_at = end.at + (limits.settle if in_contact else limits.offline)
    if now < certain_at:
        return Wait(certain_at)
    if state.restarts >= limits.restarts:
        return Finish(ExitCode.BACK_OFF_LIMIT, Result.FAILED)
    if order.stopping and order.run > state.run:
        return Wait()
    due = max(certain_at, end.at + end.delay)
    return Wait(due) if now < due else _start(state, Start(max(order.run, state.run + 1), restart=True), now)


def _start(state: RunnerState, start: Start, now: float) -> Step:
    """Start, unless the exclusions are not applied: a command must never see a host that it must leave out."""
    return start if state.in_place and now >= state.blocked_until else Wait(state.blocked_until)
