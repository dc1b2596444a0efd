"""The progress of a simulated job."""

import math


class GoodputTraining:
    """Counts the worker-steps of a job while `workers` of them train. Time is in seconds, steps may be fractions."""

    def __init__(self, step_seconds: float) -> None:
        self._step_seconds = step_seconds
        self._at = 0.0
        self.workers = 0
        self.useful = 0.0
        self.steps = 0.0
        self.steps_lost = 0.0
        self._kept = (0.0, 0.0)

    def advance(self, now: float) -> None:
        """Trains until now with the present workers."""
        steps = (now - self._at) / self._step_seconds if self.workers else 0.0
        self.steps += steps
        self.useful += steps * self.workers
        self._at = now

    @property
    def unsaved_steps(self) -> float:
        """The steps since the last kept progress."""
        return self.steps - self._kept[0]

    def keep(self) -> None:
        """Makes the progress so far one to which the job can return."""
        self._kept = (self.steps, self.useful)

    def roll_back(self, at_most: float = math.inf) -> float:
        """Returns to the last kept progress, by at most so many steps; returns the lost worker-steps."""
        steps, useful = self.steps - self._kept[0], self.useful - self._kept[1]
        lost = min(steps, at_most)
        gone = useful * lost / steps if steps else 0.0
        self.steps -= lost
        self.useful -= gone
        self.steps_lost += lost
        return gone
