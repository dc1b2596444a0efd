"""The training thread at its gate: waits shortly for the outcome, settles it and takes part."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from . import elastic_agent
from .agreement import Purpose

if TYPE_CHECKING:
    from .arbiter import Arbiter
    from .monitor import Monitor

_COMMIT_SECONDS = 2.0  # how long a rank waits at the step for a commit; the others do not wait longer either


class AgreedStep:
    """Answers `should_stop` and `should_checkpoint` at an open gate."""

    def __init__(self, monitor: Monitor, arbiter: Arbiter) -> None:
        self._monitor = monitor
        self._arbiter = arbiter

    def arrive(self, purpose: Purpose, step: int) -> bool:
        """Return whether to stop or to save after `step` finished steps. Raises TypeError if that is no integer."""
        step = operator.index(step)
        purposes = [purpose, Purpose.RENDEZVOUS] if purpose is Purpose.STOP and elastic_agent.has_round() else [purpose]
        for each in purposes:
            self._monitor.join(each)
        answer = any(self._settle(each, step) for each in purposes) or self._monitor.wants_alone(purpose)
        if answer and purpose is Purpose.STOP:
            self._monitor.stop_at(step)
        return answer

    def _settle(self, purpose: Purpose, step: int) -> bool:
        position = self._monitor.wait_at(purpose, step, _COMMIT_SECONDS)
        if position is None:
            return False
        run = self._monitor.agreements.directives[purpose].run
        outcome = self._arbiter.settle(run, position.agreement.epoch, go_through=position.is_committed)
        return self._monitor.settle(position, outcome=outcome)
