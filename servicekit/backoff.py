"""Waiting longer and longer between attempts that go on for ever."""

import random


class Backoff:
    """Full jitter: each delay is drawn between nothing and a bound that doubles.

    Drawn from the whole range, because thousands of peers lose the same server in the same instant.

    Args:
        first: Bound of the first delay, seconds.
        most: The bound stops growing here, seconds.
    """

    __slots__ = ("_bound", "_first", "_most", "_random")

    def __init__(self, first: float, most: float) -> None:
        self._first = first
        self._most = most
        self._bound = first
        self._random = random.Random()  # noqa: S311 - spreads load, keeps no secret

    def next(self) -> float:
        """The seconds to wait before the next attempt."""
        bound = self._bound
        self._bound = min(self._most, bound * 2)
        return self._random.uniform(0.0, bound)

    def reset(self) -> None:
        """Start again at the first bound."""
        self._bound = self._first
