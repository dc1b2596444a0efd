"""What a training process has spent its time on: what only the process itself can know.

The supervisor counts which workers a job has, and takes from here what they did meanwhile. All values are sums since
the process has started, so that a report that is lost takes nothing away.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class Spending(str, Enum):
    """What a process does while it makes no steps."""

    STARTING = "starting"
    """From its start to its first finished step."""
    SAVING = "saving"
    """It saves a checkpoint, and trains not meanwhile."""
    AGREEING = "agreeing"
    """It waits at an agreed step for the other ranks."""
    CHANGING = "changing"
    """It has left one round, and not entered the next one yet."""


_OF_A_CHANGE = frozenset({Spending.AGREEING, Spending.CHANGING})
"""An agreed change of rounds consists of these two. After a loss the ranks agree on no step before they change."""


def seconds_since_start() -> float | None:
    """Return the age of this process. None where the kernel does not tell it."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return round(max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started), 3)
    except (OSError, ValueError, IndexError, AttributeError):  # AttributeError: not Linux, which alone has this clock
        return None


@dataclass(frozen=True)
class TimeSpent:
    """Seconds of one process since its start, and steps.

    Attributes:
        seconds: How long the process has taken part: until its last step, and what it has spent on something else
            since then. What it did after that is told with its next step, or never: it may hang. It does not grow any
            more once the process has to stop.
        spent: Which of these seconds it made no steps in, by the reason.
        first: The number of finished steps from which this process has begun.
        highest: The highest number of finished steps that it has had.
        made: The steps that it has made. Those that it made again count again.
    """

    seconds: float
    spent: Mapping[Spending, float]
    first: int
    highest: int
    made: int

    def fields(self) -> dict[str, Any]:
        """Return the object `spent` of a report."""
        spent = {spending.value: round(seconds, 3) for spending, seconds in self.spent.items()}
        return {
            "seconds": round(self.seconds, 3),
            **spent,
            "first": self.first,
            "highest": self.highest,
            "made": self.made,
        }


@dataclass(eq=False)
class ProcessTime:
    """Adds up the time of this process. Instants are seconds of the monotonic clock; the caller has the lock.

    Args:
        born: When the process was started.

    Attributes:
        change_seconds: How long its last agreed change of rounds took: it has waited for the other ranks, and entered
            the next round. A checkpoint that was due at the same step is no part of that. None before the first.
    """

    born: float
    change_seconds: float | None = None
    _stopped_at: float | None = None
    _spent: dict[Spending, float] = field(default_factory=dict)
    _first: int | None = None
    _step: int | None = None
    _highest: int = 0
    _made: int = 0
    _stepped_at: float = 0.0
    _since: dict[Spending, float] = field(default_factory=dict)  # spent on something else since then

    @classmethod
    def of_this_process(cls) -> ProcessTime:
        """Return the time of this process since its start; where the kernel does not tell that, since now."""
        return cls(time.monotonic() - (seconds_since_start() or 0.0))

    def resumed(self, step: int) -> None:
        """Record the step that the process begins from."""
        if self._step is None:
            self._first = step

    def finished(self, step: int, now: float) -> None:
        """Record that so many steps are finished. A lower number than before is that of a state before."""
        if step != self._step:
            if self._since.keys() >= _OF_A_CHANGE:
                self.change_seconds = round(sum(self._since[part] for part in _OF_A_CHANGE), 3)
            self._stepped_at, self._since = now if self._stopped_at is None else min(now, self._stopped_at), {}
        if self._step is None:
            self._first = step if self._first is None else min(self._first, step)
            self._made = step - self._first
            self._spent[Spending.STARTING] = max(0.0, now - self.born)
        elif step > self._step:
            self._made += step - self._step
        self._step, self._highest = step, max(step, self._highest)

    def spend(self, spending: Spending, seconds: float) -> None:
        """Add seconds that have just passed. Before the first step they are part of the start."""
        if self._stopped_at is None and self._step is not None:
            self._spent[spending] = self._spent.get(spending, 0.0) + seconds
            self._since[spending] = self._since.get(spending, 0.0) + seconds

    def stop(self, now: float) -> None:
        """Record that the process has to stop: the supervisor knows what its job does from now on."""
        if self._stopped_at is None:
            self._stopped_at = now

    def told(self, now: float | None = None) -> TimeSpent | None:
        """Return the sums up to now; None if the process has not told any step."""
        if self._step is None or self._first is None:
            return None
        until = time.monotonic() if now is None else now
        until = until if self._stopped_at is None else min(until, self._stopped_at)
        seconds = max(0.0, min(until, self._stepped_at + sum(self._since.values())) - self.born)
        return TimeSpent(seconds, dict(self._spent), self._first, self._highest, self._made)
