"""Keeps what this process has agreed to, and the answers that it still has to give.

Not thread-safe: the monitor calls everything here with its lock held.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from . import gates
from .agreement import Answer, Held, Purpose, concerns, hold, receive, settle

if TYPE_CHECKING:
    from .agreement import Agreement, Position
    from .state import Line
    from .values import Directive


class Participant:
    """Keeps the positions of this rank and collects its answers. The monitor raises the gates again afterwards."""

    def __init__(self) -> None:
        self.held = Held()
        self.directives: dict[Purpose, Directive] = {}
        self._purposes: set[Purpose] = set()
        self._newest: Agreement | None = None
        self._unsent: dict[Purpose, Position] = {}
        self._sent: dict[Purpose, Position] = {}

    @property
    def is_awaited(self) -> bool:
        """Whether the supervisor waits until this rank reads its step or reaches a gate."""
        asked = None if self._newest is None else self.held.of(self._newest.purpose)
        is_bound = any(self.held.gate(purpose) is not None for purpose in Purpose)
        return is_bound or (asked is not None and not asked.is_settled)

    def awaits_step(self, line: Line) -> bool:
        """Return whether the directive of a line that was received takes effect at an agreed step, or has done so."""
        agreement = line.agreement
        if agreement is None or not line.is_agreed or agreement.purpose not in self._purposes:
            return False
        position, agreed = self.held.of(agreement.purpose), self.directives.get(agreement.purpose)
        # A line may carry a checkpoint that was saved beside a later request, which was not agreed.
        is_later = agreed is not None and line.directive.generation != agreed.generation
        is_done = position is not None and position.is_settled and agreement.purpose is Purpose.CHECKPOINT
        return not (is_later and is_done)

    def join(self, purpose: Purpose) -> None:
        """Take part in the agreements of a purpose from now on, also in one that is already there."""
        self._purposes.add(purpose)
        if self._newest is not None and self._newest.purpose is purpose:
            self._apply(self._newest)

    def receive(self, line: Line) -> None:
        """Apply the agreement of a line, or that there is none."""
        new = self._newest = line.agreement
        if new is not None and concerns(self.held, new):
            known = self.held.of(new.purpose)
            if known is None or not (known.is_settled and known.agreement.epoch == new.epoch):
                kind = new.purpose.directive or line.directive.kind
                self.directives[new.purpose] = replace(line.directive, kind=kind)
        self._apply(new)

    def at(self, purpose: Purpose, step: int) -> Position | None:
        """Return the position that holds this rank back at `step`."""
        gate = self.held.gate(purpose)
        return self.held.of(purpose) if gate is not None and step >= gate else None

    def settle(self, position: Position, *, outcome: bool | None) -> bool:
        """Record the outcome of `position`. None: it is committed now, or it is not."""
        present = self.held.of(position.agreement.purpose)
        reached = outcome
        if reached is None:
            is_same = present is not None and present.agreement.epoch == position.agreement.epoch
            reached = is_same and present is not None and present.is_committed
        self.held = settle(self.held, position, reached=reached)
        self._answer(position.agreement.purpose)
        return reached

    @property
    def awaits_agent(self) -> bool:
        """Whether this rank stops at a step after which its elastic agent ends the process."""
        position = self.held.rendezvous
        return position is not None and position.is_settled and position.is_committed

    def hold(self, purpose: Purpose) -> None:
        """Answer that this rank waits for the next round, if it has stopped for it at the agreed step."""
        self.held = hold(self.held, purpose)
        self._answer(purpose)

    def stream_opened(self) -> None:
        """Answer again: the supervisor at the other end of a new stream may not know the answers."""
        self._sent.clear()

    def next_unsent(self) -> Position | None:
        """Return a position to report, the most recent answer first."""
        return next(iter(reversed(list(self._unsent.values()))), None)

    def confirm(self, position: Position) -> None:
        """Record that a position was reported."""
        purpose = position.agreement.purpose
        if self._unsent.get(purpose) is position:
            del self._unsent[purpose]

    def repeat(self) -> None:
        """Report the present positions again."""
        self._sent.clear()
        for purpose in self._purposes:
            self._answer(purpose)

    def _apply(self, new: Agreement | None) -> None:
        step = None
        if new is not None and new.purpose in self._purposes and concerns(self.held, new):
            if new.step is not None:
                gates.lower(new.purpose, new.step)  # before the step is read, see `agreement`
            step = gates.finished_steps()
        self.held = receive(self.held, new, step)
        if new is not None and new.purpose in self._purposes:
            self._answer(new.purpose)

    def _answer(self, purpose: Purpose) -> None:
        position = self.held.of(purpose)
        if purpose is Purpose.REGROUP and position is not None and position.answer is Answer.REACHED:
            return  # the next round may begin with this answer, and this rank has something to do before
        if position is not None and position != self._sent.get(purpose):
            self._unsent.pop(purpose, None)  # the newest answer is sent first
            self._unsent[purpose] = self._sent[purpose] = position
