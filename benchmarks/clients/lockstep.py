"""The clock of a simulated synchronous training: every rank of every process finishes a step at the same instant."""

import math

import msgspec


class Lockstep(msgspec.Struct, frozen=True):
    """Step 1 is finished `step_seconds` after `began` (CLOCK_MONOTONIC, which all processes of a machine share)."""

    began: float
    step_seconds: float

    def finished(self, now: float) -> int:
        """Return the number of finished steps."""
        return max(0, math.floor((now - self.began) / self.step_seconds))

    def finished_at(self, step: int) -> float:
        """Return when a step is finished."""
        return self.began + step * self.step_seconds
