"""Exponential backoff with full jitter."""

import random


class Backoff:
    """Draws each delay between zero and a bound that doubles.

    The delay is drawn from the whole range, because thousands of peers lose the same server in the same instant.

    Args:
        first_seconds: Bound of the first delay.
        max_seconds: The bound stops growing here.
    """

    __slots__ = ("_bound", "_first", "_max", "_random")

    def __init__(self, first_seconds: float, max_seconds: float) -> None:
        self._first = first_seconds
        self._max = max_seconds
        self._bound = first_seconds
        self._random = random.Random()  # noqa: S311 - spreads load, keeps no secret

    def next(self) -> float:
        """Returns the seconds to wait before the next attempt."""
        bound = self._bound
        self._bound = min(self._max, bound * 2)
        return self._random.uniform(0.0, bound)

    def reset(self) -> None:
        """Starts again at the first bound."""
        self._bound = self._first
