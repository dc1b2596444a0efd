"""What to do next, from all that is known: the one decision of kubeai-run. Pure.

``reconcile`` is asked again after every step and every event, so each step needs only to be safe to take now. In short:
an order's exclusions first; then the end of a command that should not run; then how the last run ended, where a STOP is
told from a failure; then the next run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .exit_codes import ExitCode
from .orders import TIMED_OUT_PHASE, Order, Result, Verb

if TYPE_CHECKING:
    from .situation import End, Situation


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
class Rest(Step):
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
    """Ask the command's group to end; ``remark`` is what people should know about it, if anything."""

    remark: str = ""


@dataclass(frozen=True)
class Kill(Step):
    """Kill the command's group."""


@dataclass(frozen=True)
class Finish(Step):
    """Report the result, where there is one, and end with this exit code."""

    code: ExitCode
    result: Result | None


def reconcile(now_so: Situation, limits: Limits, now: float) -> Step:
    """Decide the next step."""
    order = now_so.order
    if order is not None and not now_so.in_place and now >= now_so.blocked_until:
        return Apply(order)
    if now_so.leaving is not None:
        return _leave(now_so, now_so.leaving, limits, now)
    if order is None:
        return _register(now_so, limits, now)
    if now_so.running:
        return _while_running(now_so, limits, now)
    return _after_the_end(now_so, order, limits, now)


def _leave(now_so: Situation, code: ExitCode, limits: Limits, now: float) -> Step:
    if not now_so.running:
        return _success(now_so) or Finish(code, Result.TERMINATED if now_so.ending else None)
    if now_so.save_asked_at is None or now_so.end_asked_at is not None or not _is_wanted(now_so):
        return _bring_to_an_end(now_so, limits, now)
    # The order changes once rank 0 has saved: the supervisor tells it to, as before a reclaim.
    deadline = now_so.save_asked_at + limits.save
    if now < deadline:
        return Rest(deadline if now_so.in_place else min(deadline, now_so.blocked_until))
    why = "no checkpoint is known to be saved" if now_so.fresh else "the supervisor is away"
    return Terminate(f"{why} after {limits.save:g} s: ending run {now_so.run} without")


def _register(now_so: Situation, limits: Limits, now: float) -> Step:
    deadline = now_so.began_at + limits.register
    return Rest(deadline) if now < deadline else Finish(ExitCode.UNREACHED, None)


def _while_running(now_so: Situation, limits: Limits, now: float) -> Step:
    if _is_wanted(now_so) and now_so.end_asked_at is None:
        return Rest(None if now_so.in_place else now_so.blocked_until)
    return _bring_to_an_end(now_so, limits, now)


def _is_wanted(now_so: Situation) -> bool:
    """Whether the order lets the running command go on."""
    order = now_so.order
    return order is not None and order.verb is Verb.RUN and order.run <= now_so.run


def _bring_to_an_end(now_so: Situation, limits: Limits, now: float) -> Step:
    if now_so.end_asked_at is None:
        return Terminate()
    if now_so.kill_asked:
        return Rest()
    deadline = now_so.end_asked_at + limits.stop
    return Kill() if now_so.impatient or now >= deadline else Rest(deadline)


def _after_the_end(now_so: Situation, order: Order, limits: Limits, now: float) -> Step:
    end, success = now_so.end, _success(now_so)
    if success is not None:
        return success
    if order.verb is Verb.END:
        return _ended_by(order)
    if order.verb is Verb.WAIT:
        return Rest(None if now_so.in_place else now_so.blocked_until)
    if end is not None and not end.asked and now_so.stopped_by is None:
        return _after_a_failure(now_so, order, end, limits, now)
    if order.run > now_so.run or end is None:
        # A run that is to stop before it was started is not worth its start: what follows it comes as the next order.
        return Rest() if order.stopping else _start(now_so, Start(order.run), now)
    return _after_a_stop(now_so, order, now_so.stopped_by or 0, now)


def _success(now_so: Situation) -> Finish | None:
    """The end of a command that has done its work; None where it has not."""
    end = now_so.end
    succeeded = end is not None and end.exit_code == 0 and not end.asked
    return Finish(ExitCode.SUCCEEDED, Result.SUCCEEDED) if succeeded else None


def _ended_by(order: Order) -> Finish:
    if order.phase == TIMED_OUT_PHASE:
        return Finish(ExitCode.TIMED_OUT, Result.TIMED_OUT)
    return Finish(ExitCode.TERMINATED, Result.TERMINATED)


def _after_a_stop(now_so: Situation, order: Order, stopped_by: int, now: float) -> Step:
    # An order that is newer than the stop and wants the job to run, without a new run number, was given by a supervisor
    # that took the stop back before it had happened. Older ones, or those that still announce it, change nothing.
    if order.generation > stopped_by and not order.stopping:
        return _start(now_so, Start(now_so.run + 1), now)
    return Rest()


def _after_a_failure(now_so: Situation, order: Order, end: End, limits: Limits, now: float) -> Step:
    """Wait for a word that it was none, then for the back-off, then start the next run or give up.

    The supervisor orders the next run as soon as it hears of the failure; the back-off and its limit are kept here.
    """
    in_contact = now_so.fresh and end.confirmed
    certain_at = end.at + (limits.settle if in_contact else limits.offline)
    if now < certain_at:
        return Rest(certain_at)
    if now_so.restarts >= limits.restarts:
        return Finish(ExitCode.BACK_OFF_LIMIT, Result.FAILED)
    if order.stopping and order.run > now_so.run:
        return Rest()
    due = max(certain_at, end.at + end.delay)
    return Rest(due) if now < due else _start(now_so, Start(max(order.run, now_so.run + 1), restart=True), now)


def _start(now_so: Situation, start: Start, now: float) -> Step:
    """Start, unless exclusions are not in place: a command must never see a host that it is to leave out."""
    return start if now_so.in_place and now >= now_so.blocked_until else Rest(now_so.blocked_until)
