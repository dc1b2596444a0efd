"""Applies the supervisor's lines to the state of this process, as pure functions of state, line and time.

Times are seconds of one monotonic clock, which the caller passes in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from . import agreement
from .values import Directive, DirectiveKind, Notice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .agreement import Agreement

NO_DIRECTIVE = Directive(DirectiveKind.RUN, job="", run=0, generation=0, reason="no directive received yet")


class MalformedLine(ValueError):  # noqa: N818 - the name describes the line
    """A line of type directive lacks a required field. It has no effect."""


@dataclass(frozen=True)
class Line:
    """A validated line of type `directive`. Durations are seconds from its receipt."""

    directive: Directive
    act_in: float
    seconds_left: float | None
    notice: Notice | None
    release: bool
    agreement: Agreement | None = None

    @property
    def is_agreed(self) -> bool:
        """Whether the directive is the one of a committed agreement."""
        return (
            self.agreement is not None
            and self.agreement.committed
            and self.agreement.purpose.directive is self.directive.kind
        )


@dataclass(frozen=True)
class Pending:
    """A directive that takes effect at `due` unless a later line replaces it."""

    directive: Directive
    due: float


@dataclass(frozen=True)
class HeldNotice:
    """A notice and the deadline of its host."""

    notice: Notice
    deadline: float | None

    def at(self, now: float) -> Notice:
        """Return the notice with `seconds_left` as of `now`."""
        return replace(self.notice, seconds_left=_until(self.deadline, now))


@dataclass(frozen=True)
class State:
    """The state that results from everything received. `is_agreed`: the directive came at an agreed step."""

    directive: Directive = NO_DIRECTIVE
    is_agreed: bool = False
    pending: Pending | None = None
    deadline: float | None = None
    notice: HeldNotice | None = None
    release: bool = False
    saved_for: int | None = None
    saved_after_signal: bool = False

    @property
    def wants_checkpoint(self) -> bool:
        """Whether the directive requests a checkpoint that has not been reported as saved."""
        return self.directive.kind is not DirectiveKind.RUN and self.saved_for != self.directive.generation

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds until the first noticed host is gone, at least 0; None if that is unknown."""
        if self.deadline is None and self.notice is not None:
            return _until(self.notice.deadline, now)
        return _until(self.deadline, now)


def parse(message: Mapping[str, Any]) -> Line:
    """Validate a message of type `directive`. Unknown fields are ignored. Raises MalformedLine."""
    try:
        directive = Directive(
            kind=DirectiveKind(message["directive"]),
            job=_checked(message["job"], str),
            run=_checked(message["run"], int),
            generation=_checked(message["generation"], int),
            reason=_checked(message["reason"], str),
        )
        return Line(
            directive,
            act_in=_number(message["act_in"]),
            seconds_left=_optional_number(message.get("seconds_left")),
            notice=_notice(message.get("notice")),
            release=_checked(message.get("release", False), bool),
            agreement=agreement.parse(message.get("agreement")),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        # OverflowError: JSON allows integers that no float can hold.
        raise MalformedLine(f"{type(error).__name__}: {error}") from error


def apply(state: State, line: Line, now: float, *, waits_for_step: bool = False) -> State:
    """Return the state after `line` was received at `now`.

    The latest line wins, except over a STOP or LEAVE in effect.

    Args:
        state: The state before.
        line: What was received.
        now: When it was received.
        waits_for_step: The directive takes effect at an agreed step, by `take_effect`, and not by time.
    """
    received = replace(state, notice=_held(line.notice, now), release=line.release)
    if state.directive.is_final:
        return received
    deadline = None if line.seconds_left is None else now + line.seconds_left
    if waits_for_step:
        return replace(received, pending=None, deadline=deadline)
    return advance(replace(received, pending=Pending(line.directive, now + line.act_in), deadline=deadline), now)


def apply_annotation(state: State, directive: Directive, *, is_news: bool) -> State:
    """Return the state after a directive from the pod's annotation. A newer one of the supervisor wins.

    Only the supervisor can say whether a directive that is not new is for this run.
    """
    last = state.directive if state.pending is None else state.pending.directive
    is_ours = is_news if last == NO_DIRECTIVE else directive.run == last.run
    if state.directive.is_final or not is_ours or directive.generation < last.generation:
        return state
    return replace(state, directive=replace(directive, job=last.job), pending=None, is_agreed=False)


def advance(state: State, now: float) -> State:
    """Return the state at `now`: a pending directive that is due has taken effect."""
    if state.pending is None or now < state.pending.due:
        return state
    new = state.pending.directive
    is_same = (new.kind, new.generation) == (state.directive.kind, state.directive.generation)
    return replace(state, directive=new, pending=None, is_agreed=state.is_agreed and is_same)


def take_effect(state: State, directive: Directive) -> State:
    """Return the state at the agreed step of `directive`."""
    return replace(state, directive=directive, pending=None, is_agreed=True)


def apply_sigterm(state: State) -> State:
    """Return the state after SIGTERM. The generation stays, because the supervisor decided nothing."""
    leave = replace(state.directive, kind=DirectiveKind.LEAVE, reason="SIGTERM has arrived")
    saved_for = leave.generation if state.saved_after_signal else None
    return replace(state, directive=leave, is_agreed=False, saved_for=saved_for)


def _held(notice: Notice | None, now: float) -> HeldNotice | None:
    if notice is None:
        return None
    return HeldNotice(notice, None if notice.seconds_left is None else now + notice.seconds_left)


def _until(instant: float | None, now: float) -> float | None:
    return None if instant is None else max(0.0, instant - now)


def _notice(value: Any) -> Notice | None:
    if value is None:
        return None
    return Notice(
        id=_checked(value["id"], str),
        source=_checked(value["source"], str),
        host=_checked(value["host"], str),
        seconds_left=_optional_number(value.get("seconds_left")),
    )


def _optional_number(value: Any) -> float | None:
    return None if value is None else _number(value)


def _number(value: Any) -> float:
    """Return a finite number of seconds, at least 0: a negative one means that the event is already due."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise TypeError(f"{value!r} is not a number of seconds")
    return max(0.0, float(value))


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value
