"""Implements one rank's part in an agreement on a step at which all ranks stop or save.

The supervisor asks all ranks for their step (a poll: `step` is None), proposes a step S that all of them can still
reach, and commits S once all have accepted. A rank accepts only while its own step is below S.

A rank that has accepted must pass its gate, which is S, only with the outcome known. So `Participant` sets the gate
first and reads the step afterwards, while the training thread writes its step first and reads the gate afterwards: one
of the two sees the other.
"""

from __future__ import annotations

import operator
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from . import elastic_agent, gates
from .messages import DIRECTIVE_OF, RankAnswer, StepPurpose
from .ranks import ask
from .spending import Spending

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from .messages import Directive, DirectiveLine, StepAgreement
    from .monitor import Monitor

_SETTLED = (RankAnswer.PASSED, RankAnswer.REACHED, RankAnswer.HELD)
_COMMITTED = (RankAnswer.COMMITTED, RankAnswer.REACHED, RankAnswer.HELD)
_COMMIT_SECONDS = 2.0  # how long a rank waits at the step for a commit; the others do not wait longer either
_STORE_SECONDS = 2.0  # a store whose host is gone may not answer for minutes


@dataclass(frozen=True)
class RankPosition:
    """An agreement and this rank's answer to it."""

    agreement: StepAgreement
    answer: RankAnswer

    @property
    def is_settled(self) -> bool:
        """Whether this rank has stopped or saved at the agreed step, or has gone past it."""
        return self.answer in _SETTLED

    @property
    def is_committed(self) -> bool:
        """Whether this rank stops or saves at the step, or has done so."""
        return self.answer in _COMMITTED


@dataclass(frozen=True)
class HeldPositions:
    """The newest epoch that this rank has seen, and its position for each purpose. Pure: without clock or thread."""

    epoch: int = 0
    positions: Mapping[StepPurpose, RankPosition] = field(default_factory=dict)

    def gate(self, purpose: StepPurpose) -> int | None:
        """Return the step that this rank must not pass before the outcome is known; None if it may go on."""
        position = self.positions.get(purpose)
        is_bound = position is not None and position.answer in (RankAnswer.ACCEPTED, RankAnswer.COMMITTED)
        return position.agreement.step if position is not None and is_bound else None

    def newest(self) -> RankPosition | None:
        """Return the position of the newest agreement that this rank has accepted or committed to."""
        bound = [
            position
            for purpose, position in self.positions.items()
            if self.gate(purpose) is not None or position.is_committed
        ]
        return max(bound, key=lambda position: position.agreement.epoch, default=None)

    def receive(self, agreement: StepAgreement | None, step: int | None) -> HeldPositions:
        """Return the positions after a line with this agreement. Each line has the whole present state.

        An older epoch is ignored. A line without an agreement drops the positions that are not committed.

        Args:
            agreement: The agreement in the line.
            step: The steps that the rank has finished, read after the gate was set; None if it has not said so yet.
        """
        if agreement is not None and agreement.epoch < self.epoch:
            return self
        kept = dict(self.positions)
        if agreement is None or agreement.epoch > self.epoch:  # no later line may take back what is committed
            kept = {
                purpose: position
                for purpose, position in kept.items()
                if position.is_settled or position.answer is RankAnswer.COMMITTED
            }
        if agreement is None:
            return HeldPositions(self.epoch, kept)
        kept[agreement.purpose] = _answered(kept.get(agreement.purpose), agreement, step)
        return HeldPositions(agreement.epoch, kept)

    def settle(self, position: RankPosition, *, reached: bool) -> HeldPositions:
        """Return the positions once it is known whether the rank stops or saves at the step of `position`."""
        purpose = position.agreement.purpose
        known = self.positions.get(purpose)
        if known is not None and known.agreement.epoch > position.agreement.epoch and not reached:
            return self  # A newer one has replaced it meanwhile.
        committed = replace(position.agreement, committed=position.agreement.committed or reached)
        answer = RankAnswer.REACHED if reached else RankAnswer.PASSED
        return HeldPositions(self.epoch, {**self.positions, purpose: RankPosition(committed, answer)})

    def hold(self, purpose: StepPurpose) -> HeldPositions:
        """Return the positions once the rank waits for the next round. It waits only at a step that it has reached."""
        position = self.positions.get(purpose)
        if position is None or position.answer is not RankAnswer.REACHED:
            return self
        held = replace(position, answer=RankAnswer.HELD)
        return HeldPositions(self.epoch, {**self.positions, purpose: held})


def _answered(known: RankPosition | None, agreement: StepAgreement, step: int | None) -> RankPosition:
    """Return the rank's position, with its answer to an agreement of the newest epoch."""
    if known is not None and known.agreement.epoch == agreement.epoch:
        if known.is_settled or known.answer is RankAnswer.COMMITTED:
            return known
        if known.answer is RankAnswer.ACCEPTED and agreement.step in (None, known.agreement.step):
            return RankPosition(agreement, RankAnswer.COMMITTED) if agreement.committed else known
    if agreement.step is None or step is None:
        return RankPosition(agreement, RankAnswer.DECLINED)
    if agreement.committed:
        return RankPosition(agreement, RankAnswer.COMMITTED if step < agreement.step else RankAnswer.PASSED)
    return RankPosition(agreement, RankAnswer.ACCEPTED if step < agreement.step else RankAnswer.DECLINED)


@dataclass(eq=False)
class Participant:
    """Keeps the positions of this rank and collects the answers that it still has to give.

    Not thread-safe: the monitor calls everything here with its lock held, and places the gates again afterwards.
    """

    held: HeldPositions = field(default_factory=HeldPositions)
    directives: dict[StepPurpose, Directive] = field(default_factory=dict)
    unsent: dict[StepPurpose, RankPosition] = field(default_factory=dict)  # the most recent answer last
    sent: dict[StepPurpose, RankPosition] = field(default_factory=dict)
    _purposes: set[StepPurpose] = field(default_factory=set)
    _newest: StepAgreement | None = None

    def is_awaited(self) -> bool:
        """Return whether the supervisor waits until this rank reads its step or reaches a gate."""
        if any(self.held.gate(purpose) is not None for purpose in StepPurpose):
            return True
        asked = None if self._newest is None else self.held.positions.get(self._newest.purpose)
        return asked is not None and not asked.is_settled

    def awaits_step(self, line: DirectiveLine) -> bool:
        """Return whether the directive of a line that was received takes effect at an agreed step, or has done so."""
        agreement = line.agreement
        if agreement is None or not agreement.committed or agreement.purpose not in self._purposes:
            return False
        if DIRECTIVE_OF.get(agreement.purpose) is not line.directive.kind:
            return False
        position, agreed = self.held.positions.get(agreement.purpose), self.directives.get(agreement.purpose)
        # A line may carry a checkpoint that was saved beside a later request, which was not agreed.
        is_later = agreed is not None and line.directive.generation != agreed.generation
        is_done = position is not None and position.is_settled and agreement.purpose is StepPurpose.CHECKPOINT
        return not (is_later and is_done)

    def join(self, purpose: StepPurpose) -> None:
        """Take part in the agreements of a purpose from now on, including one that has already arrived."""
        self._purposes.add(purpose)
        if self._newest is not None and self._newest.purpose is purpose:
            self._apply(self._newest)

    def receive(self, line: DirectiveLine) -> None:
        """Apply the agreement of a line. A line without an agreement ends the present one."""
        new = self._newest = line.agreement
        if new is not None and new.epoch >= self.held.epoch:
            known = self.held.positions.get(new.purpose)
            if known is None or not (known.is_settled and known.agreement.epoch == new.epoch):
                kind = DIRECTIVE_OF.get(new.purpose, line.directive.kind)
                self.directives[new.purpose] = replace(line.directive, kind=kind)
        self._apply(new)

    def _apply(self, new: StepAgreement | None) -> None:
        step = None
        if new is not None and new.purpose in self._purposes and new.epoch >= self.held.epoch:
            if new.step is not None:
                gates.lower(new.purpose, new.step)  # before the step is read, see above
            step = gates.finished_steps()
        self.held = self.held.receive(new, step)
        if new is not None and new.purpose in self._purposes:
            self._answer(new.purpose)

    def at(self, purpose: StepPurpose, step: int) -> RankPosition | None:
        """Return the position that holds this rank back at `step`."""
        gate = self.held.gate(purpose)
        return self.held.positions.get(purpose) if gate is not None and step >= gate else None

    def settle(self, position: RankPosition, *, outcome: bool | None) -> bool:
        """Record whether all ranks stop or save at `position`. For None, only a commit that has arrived counts."""
        purpose, reached = position.agreement.purpose, outcome
        if reached is None:
            present = self.held.positions.get(purpose)
            is_same = present is not None and present.agreement.epoch == position.agreement.epoch
            reached = is_same and present is not None and present.is_committed
        self.held = self.held.settle(position, reached=reached)
        self._answer(purpose)
        return reached

    def hold(self, purpose: StepPurpose) -> None:
        """Answer that this rank waits for the next round, if it has stopped for it at the agreed step."""
        self.held = self.held.hold(purpose)
        self._answer(purpose)

    def repeat(self) -> None:
        """Report the present positions again."""
        self.sent.clear()
        for purpose in self._purposes:
            self._answer(purpose)

    def _answer(self, purpose: StepPurpose) -> None:
        position = self.held.positions.get(purpose)
        if purpose is StepPurpose.REGROUP and position is not None and position.answer is RankAnswer.REACHED:
            return  # the next round may begin with this answer, and this rank has something to do before
        if position is not None and position != self.sent.get(purpose):
            self.unsent.pop(purpose, None)  # the newest answer is sent first
            self.unsent[purpose] = self.sent[purpose] = position


@dataclass
class AgreedStep:
    """Answers `should_stop` and `should_checkpoint` at an open gate, in the training thread."""

    monitor: Monitor
    arbiter: StoreArbiter

    def arrive(self, purpose: StepPurpose, step: int) -> bool:
        """Return whether to stop or to save after `step` finished steps. Raises TypeError if that is no integer.

        At the agreed step it waits shortly for the commit, and settles the outcome with the other ranks.
        """
        step, purposes = operator.index(step), [purpose]
        if purpose is StepPurpose.STOP and elastic_agent.has_round():
            purposes.append(StepPurpose.RENDEZVOUS)
        for each in purposes:
            self.monitor.join(each)
        answer = False
        for each in purposes:
            began = time.monotonic()
            position = None if answer else self.monitor.wait_at(each, step, _COMMIT_SECONDS)
            if position is not None:
                run, epoch = self.monitor.agreements.directives[each].run, position.agreement.epoch
                outcome = self.arbiter.settle(run, epoch, go_through=position.is_committed)
                self.monitor.spend(Spending.AGREEING, time.monotonic() - began)
                answer = self.monitor.settle(position, outcome=outcome)
        answer = answer or self.monitor.wants_alone(purpose)
        if answer and purpose is StepPurpose.STOP:
            self.monitor.stop_at(step)
        return answer


@dataclass
class StoreArbiter:
    """Lets the ranks settle between themselves whether they stop at an agreed step.

    A rank that is cut off from the supervisor between a commit and its step does not know the commit, and would go on
    while the others save and wait for it. The default store of torch.distributed, if the script has initialised that,
    connects the ranks without the supervisor: the first of them to write decides for all. Nothing is imported here.
    """

    modules: Mapping[str, ModuleType]

    def settle(self, run: int, epoch: int, *, go_through: bool) -> bool | None:
        """Propose an outcome for an epoch and return the one that holds for all ranks; None without a usable store.

        Waits for at most 2 s.
        """
        torch = self.modules.get("torch.distributed")
        inner = self.modules.get("torch.distributed.distributed_c10d")
        if torch is None or inner is None or not ask(torch, "is_available") or not ask(torch, "is_initialized"):
            return None
        store = ask(inner, "_get_default_store")
        if store is None:
            return None
        outcomes: list[bool] = []
        proposed = "stop" if go_through else "go"

        def write() -> None:
            try:
                value = store.compare_set(f"kubeai/{run}/{epoch}", "", proposed)
                outcomes.append((value.decode() if isinstance(value, bytes) else str(value)) == "stop")
            except Exception:  # noqa: BLE001 - a framework may raise anything; without a store the rank decides alone
                outcomes.clear()

        # Another thread, because the call cannot be interrupted.
        thread = threading.Thread(target=write, name="kubeai-settle", daemon=True)
        thread.start()
        thread.join(_STORE_SECONDS)
        return outcomes[0] if outcomes else None
