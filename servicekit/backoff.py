"""Exponential backoff with full jitter."""

import math
import random

from servicekit.clock import Clock

_REPLACED_WITHIN = 1.0
"""Seconds: clients of a server that has just gone spread their attempts over this time, so its successor gets them soon
and not all at once."""

_OF_THE_ABSENCE = 1 / 4
"""After a longer absence the attempts are spread over this part of it."""


class Backoff:
    """Draws each delay between zero and a bound that doubles.

    The delay is drawn from the whole range, because thousands of peers lose the same server in the same instant.

    Args:
        first_seconds: Bound of the first delay.
        max_seconds: The bound stops growing here.
        source: Draws the delays.
    """

    __slots__ = ("_bound", "_first", "_max", "_random")

    def __init__(self, first_seconds: float, max_seconds: float, source: random.Random | None = None) -> None:
        self._first = first_seconds
        self._max = max_seconds
        self._bound = first_seconds
        self._random = source or random.Random()  # noqa: S311 - spreads load, keeps no secret

    def next(self, at_most: float = math.inf) -> float:
        """Returns the seconds to wait before the next attempt; `at_most` bounds this delay alone."""
        bound = self._bound
        self._bound = min(self._max, bound * 2)
        return self._random.uniform(0.0, min(bound, at_most))

    def reset(self) -> None:
        """Starts again at the first bound."""
        self._bound = self._first


class ReconnectBackoff:
    """Draws the delays of a client that has lost its server, and asks a server that has just gone more often.

    Args:
        first_seconds: Bound of the first delay.
        max_seconds: Bound of every delay, also while the server stays away.
        clock: Monotonic instants.
        source: Draws the delays.
    """

    __slots__ = ("_backoff", "_clock", "_lost_at")

    def __init__(
        self, first_seconds: float, max_seconds: float, clock: Clock, source: random.Random | None = None
    ) -> None:
        self._backoff = Backoff(first_seconds, max_seconds, source)
        self._clock = clock
        self._lost_at: float | None = None

    def next(self) -> float:
        """Returns the seconds to wait before the next attempt."""
        now = self._clock.monotonic()
        if self._lost_at is None:
            self._lost_at = now
        return self._backoff.next(max(_REPLACED_WITHIN, (now - self._lost_at) * _OF_THE_ABSENCE))

    def reset(self) -> None:
        """Forgets the absence: the server is there."""
        self._backoff.reset()
        self._lost_at = None
