"""What to do next, from all that is known: the one decision of kubeai-run. Pure.

``reconcile`` is asked again after every step and every event, so each step needs only to be safe to take now. In short:
an order's exclusions first; then the end of a command that should not run; then how the last run ended, where a STOP is
told from a failure; then the next run.
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
    """The bounds that the user set, in seconds but for the first.

    Attributes:
        restarts: failures that are followed by a restart.
        register: for reaching the supervisor at the start.
        save: from a request to end the job until its command's group is asked to end, for a checkpoint.
        stop: from asking a command's group to end until it is killed.
        offline: for the supervisor to come back and say that an end was a STOP.
        settle: for an order that is on its way when a command ends; processes may hear of a STOP slightly earlier.
    """

    restarts: int = 6
    register: float = 60.0
    save: float = 60.0
    stop: float = 10.0
    offline: float = 30.0
    settle: float = 0.5


class Step:
    """What to do next."""


@dataclass(frozen=True)
class Wait(Step):
    """Nothing until something happens, or until an instant (None: however long that takes)."""

    until: float | None = None


@dataclass(frozen=True)
class Apply(Step):
    """Put the order's hosts, exclusions and token in place."""

    order: Order


@dataclass(frozen=True)
class Start(Step):
    """Start the command as this run; ``restart``: because the one before failed."""

    run: int
    restart: bool = False


@dataclass(frozen=True)
class Terminate(Step):
    """Ask the command's group to end; ``message`` is what people should know about it, if anything."""

    message: str = ""


@dataclass(frozen=True)
class Kill(Step):
    """Kill the command's group."""


@dataclass(frozen=True)
class Finish(Step):
    """Report the result, where there is one, and end with this exit code."""

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
    # The order changes once rank 0 has saved: the supervisor tells it to, as before a reclaim.
    deadline = state.save_asked_at + limits.save
    if now < deadline:
        return Wait(deadline if state.in_place else min(deadline, state.blocked_until))
    why = "no checkpoint is known to be saved" if state.fresh else "the supervisor is away"
    return Terminate(f"{why} after {limits.save:g} s: ending run {state.run} without")


def _register(state: RunnerState, limits: Limits, now: float) -> Step:
    deadline = state.began_at + limits.register
    return Wait(deadline) if now < deadline else Finish(ExitCode.UNREACHED, None)


def _while_running(state: RunnerState, limits: Limits, now: float) -> Step:
    if _is_wanted(state) and state.end_asked_at is None:
        return Wait(None if state.in_place else state.blocked_until)
    return _end_command(state, limits, now)


def _is_wanted(state: RunnerState) -> bool:
    """Whether the order lets the running command go on."""
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
        # A run that is to stop before it was started is not worth its start: what follows it comes as the next order.
        return Wait() if order.stopping else _start(state, Start(order.run), now)
    return _after_a_stop(state, order, state.stopped_by or 0, now)


def _success(state: RunnerState) -> Finish | None:
    """The end of a command that has done its work; None where it has not."""
    end = state.end
    succeeded = end is not None and end.exit_code == 0 and not end.asked
    return Finish(ExitCode.SUCCEEDED, Result.SUCCEEDED) if succeeded else None


def _ended_by(order: Order) -> Finish:
    if order.phase == TIMED_OUT_PHASE:
        return Finish(ExitCode.TIMED_OUT, Result.TIMED_OUT)
    return Finish(ExitCode.TERMINATED, Result.TERMINATED)


def _after_a_stop(state: RunnerState, order: Order, stopped_by: int, now: float) -> Step:
    # An order that is newer than the stop and wants the job to run, without a new run number, was given by a supervisor
    # that took the stop back before it had happened. Older ones, or those that still announce it, change nothing.
    if order.generation > stopped_by and not order.stopping:
        return _start(state, Start(state.run + 1), now)
    return Wait()


def _after_a_failure(state: RunnerState, order: Order, end: End, limits: Limits, now: float) -> Step:
    """Wait for a word that it was none, then for the back-off, then start the next run or give up.

    The supervisor orders the next run as soon as it hears of the failure; the back-off and its limit are kept here.
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
    """Start, unless exclusions are not in place: a command must never see a host that it is to leave out."""
    return start if state.in_place and now >= state.blocked_until else Wait(state.blocked_until)
