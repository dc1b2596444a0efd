"""The state machine of one rank that agrees on a step, as pure functions without a clock or a thread.

The supervisor asks all ranks for their step (a poll: `step` is None), proposes a step S that all of them can still
reach, and commits S once all have accepted. A rank accepts only while its own step is below S.

A rank that has accepted must pass its gate, which is S, only with the outcome known. So the caller sets the gate first
and reads its step afterwards, while the training thread writes its step first and reads the gate afterwards: one of
the two sees the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from .values import DirectiveKind

if TYPE_CHECKING:
    from collections.abc import Mapping


class Purpose(str, Enum):
    """The action that all ranks take at the agreed step."""

    STOP = "stop"
    """Save and exit."""
    CHECKPOINT = "checkpoint"
    """Save and go on."""
    RENDEZVOUS = "rendezvous"
    """Save and hold until the elastic agent ends the process, to start another one in the next round."""
    REGROUP = "regroup"
    """Hold, and go on in the next round without a restart."""

    @property
    def directive(self) -> DirectiveKind | None:
        """The directive that takes effect at the agreed step; None: the present one stays."""
        return _DIRECTIVES.get(self)


_DIRECTIVES = {
    Purpose.STOP: DirectiveKind.STOP,
    Purpose.CHECKPOINT: DirectiveKind.CHECKPOINT,
    Purpose.RENDEZVOUS: DirectiveKind.STOP,
}


class Answer(str, Enum):
    """A rank's answer to an agreement."""

    DECLINED = "declined"
    """The step is unknown (a poll), or this rank has already finished it."""
    ACCEPTED = "accepted"
    """This rank will not pass the step without knowing the outcome."""
    COMMITTED = "committed"
    """This rank will stop or save at the step."""
    PASSED = "passed"
    """This rank has gone past the step, and will not stop or save for this agreement."""
    REACHED = "reached"
    """This rank has stopped or saves at the step."""
    HELD = "held"
    """This rank waits at the step, outside any collective, for the next round."""


@dataclass(frozen=True)
class Agreement:
    """A poll, a proposal or a commit. `epoch` numbers the attempts of a job and is never used again."""

    epoch: int
    purpose: Purpose
    step: int | None
    committed: bool


@dataclass(frozen=True)
class Position:
    """An agreement and this rank's answer to it."""

    agreement: Agreement
    answer: Answer

    @property
    def gate(self) -> int | None:
        """The step that this rank must not pass before the outcome is known; None if it may go on."""
        return self.agreement.step if self.answer in (Answer.ACCEPTED, Answer.COMMITTED) else None

    @property
    def is_settled(self) -> bool:
        """Whether this rank has stopped or saved for it, or has gone past it."""
        return self.answer in (Answer.PASSED, Answer.REACHED, Answer.HELD)

    @property
    def is_final(self) -> bool:
        """Whether no later line of the same epoch can change the answer."""
        return self.is_settled or self.answer is Answer.COMMITTED

    @property
    def is_committed(self) -> bool:
        """Whether this rank stops or saves at the step, or has done so."""
        return self.answer in (Answer.COMMITTED, Answer.REACHED, Answer.HELD)


@dataclass(frozen=True)
class Held:
    """All that a rank holds: the newest epoch that it has seen, and for each purpose its position."""

    epoch: int = 0
    stop: Position | None = None
    checkpoint: Position | None = None
    rendezvous: Position | None = None
    regroup: Position | None = None

    @property
    def positions(self) -> Mapping[Purpose, Position | None]:
        """The position for each purpose."""
        return {purpose: getattr(self, purpose.value) for purpose in Purpose}

    def of(self, purpose: Purpose) -> Position | None:
        """Return the position for a purpose."""
        return self.positions[purpose]

    def gate(self, purpose: Purpose) -> int | None:
        """Return the gate for a purpose; None if there is none."""
        position = self.of(purpose)
        return None if position is None else position.gate

    @property
    def newest(self) -> Position | None:
        """The newest position in which this rank has accepted or committed itself."""
        bound = [
            one for one in self.positions.values() if one is not None and (one.gate is not None or one.is_committed)
        ]
        return max(bound, key=lambda position: position.agreement.epoch, default=None)


def parse(value: Mapping[str, Any] | None) -> Agreement | None:
    """Read the field `agreement` of a line. Raises KeyError, TypeError or ValueError."""
    if value is None:
        return None
    epoch, step, committed = value["epoch"], value["step"], value["committed"]
    if type(epoch) is not int or type(committed) is not bool or not (step is None or type(step) is int):
        raise TypeError(f"{value!r} is not an agreement")
    if committed and step is None:
        raise ValueError("a committed agreement without a step")
    return Agreement(epoch, Purpose(value["purpose"]), step, committed)


def concerns(held: Held, agreement: Agreement | None) -> bool:
    """Return whether an agreement is the present one or newer, so that `receive` looks at it."""
    return agreement is not None and agreement.epoch >= held.epoch


def receive(held: Held, agreement: Agreement | None, step: int | None) -> Held:
    """Return what the rank holds after a line with this agreement. The line is the whole present state.

    An older epoch is ignored. Without an agreement, what is not committed is dropped.

    Args:
        held: What the rank held before.
        agreement: The agreement in the line.
        step: The steps that the rank has finished, read after the gate was set; None if it has not said so yet.
    """
    if agreement is None:
        return _only_final(held, held.epoch)
    if not concerns(held, agreement):
        return held
    if agreement.epoch > held.epoch:
        held = _only_final(held, agreement.epoch)
    return _with(held, _position(held.of(agreement.purpose), agreement, step))


def settle(held: Held, position: Position, *, reached: bool) -> Held:
    """Return what the rank holds once it is known whether it stops or saves for `position`."""
    known = held.of(position.agreement.purpose)
    if known is not None and known.agreement.epoch > position.agreement.epoch and not reached:
        return held  # A newer one has replaced it meanwhile.
    committed = replace(position.agreement, committed=position.agreement.committed or reached)
    return _with(held, Position(committed, Answer.REACHED if reached else Answer.PASSED))


def hold(held: Held, purpose: Purpose) -> Held:
    """Return what the rank holds once it waits for the next round. It changes only at a step that it has reached."""
    position = held.of(purpose)
    if position is None or position.answer is not Answer.REACHED:
        return held
    return _with(held, replace(position, answer=Answer.HELD))


def _position(known: Position | None, agreement: Agreement, step: int | None) -> Position:
    """Return the position after an agreement of the newest epoch."""
    if known is not None and known.agreement.epoch == agreement.epoch:
        if known.is_final:
            return known
        if known.answer is Answer.ACCEPTED and agreement.step in (None, known.agreement.step):
            return Position(agreement, Answer.COMMITTED) if agreement.committed else known
    if agreement.step is None or step is None:
        return Position(agreement, Answer.DECLINED)
    if agreement.committed:
        return Position(agreement, Answer.COMMITTED if step < agreement.step else Answer.PASSED)
    return Position(agreement, Answer.ACCEPTED if step < agreement.step else Answer.DECLINED)


def _only_final(held: Held, epoch: int) -> Held:
    """Keep what no later line may take back."""
    final = {
        purpose.value: position
        for purpose, position in held.positions.items()
        if position is not None and position.is_final
    }
    return Held(epoch, **final)


def _with(held: Held, position: Position) -> Held:
    known = {purpose.value: one for purpose, one in held.positions.items()}
    return Held(held.epoch, **{**known, position.agreement.purpose.value: position})
