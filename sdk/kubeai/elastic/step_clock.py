"""Measures how long steps and checkpoints take, and how long the step has not changed."""

from __future__ import annotations

from collections import deque

from .messages import Pace

_WINDOW_SECONDS = 1.0  # a sample every 0.5 s makes a shorter window too inexact
_WINDOWS = 20
_SAVES = 20


class StepClock:
    """Learns from samples of the step. Times are seconds of one monotonic clock, which the caller passes in."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._changed_at = 0.0
        self._window: tuple[int, float] | None = None  # where the present window began
        self._step_seconds: deque[float] = deque(maxlen=_WINDOWS)
        self._saves: deque[float] = deque(maxlen=_SAVES)

    def sample(self, step: int | None, now: float) -> Pace:
        """Record that `step` steps are finished, and return the present pace.

        The time of a step is that of the fastest recent window, so that nobody is expected too late at a step.
        """
        if step is not None and step != self._step:
            self._advance(step, now)
        return Pace(
            step_seconds=min(self._step_seconds, default=None),
            checkpoint_seconds=max(self._saves, default=None),
            unread_seconds=None if self._step is None else now - self._changed_at,
        )

    def saved(self, seconds: float) -> None:
        """Record how long a checkpoint took."""
        self._saves.append(seconds)

    def _advance(self, step: int, now: float) -> None:
        self._step, self._changed_at = step, now
        if self._window is None or step < self._window[0]:  # the first one, or a rollback
            self._window = (step, now)
            return
        began_step, began = self._window
        if now - began >= _WINDOW_SECONDS and step > began_step:
            self._step_seconds.append((now - began) / (step - began_step))
            self._window = (step, now)
