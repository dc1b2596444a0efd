"""Estimates the API server's clock, which the instants in objects refer to."""

from email.utils import parsedate_to_datetime

from servicekit.clock import Clock

_HALF = 0.5
"""Seconds: a Date is cut to whole seconds."""


class ClusterClock:
    """Estimates the API server's clock by the `Date` of its answers; before the first it is the process's clock.

    Attributes:
        own: The process's clock.
    """

    def __init__(self, clock: Clock) -> None:
        self.own = clock
        self._ahead = 0.0
        self._min_ahead = self._max_ahead = 0.0

    def observe(self, date: str, seconds: float) -> None:
        """Reads the Date of an answer that just arrived, `seconds` after its request; ignores a malformed Date."""
        try:
            at = parsedate_to_datetime(date).timestamp()
        except (ValueError, OverflowError):
            return
        self._ahead = at + _HALF - self.own.now()
        self._min_ahead, self._max_ahead = self._ahead - _HALF, self._ahead + _HALF + seconds

    def now(self) -> float:
        """Unix seconds, with an error of about half a second."""
        return self.own.now() + self._ahead

    def correct_own_clock(self) -> float:
        """Corrects the process's own clock by the smallest error that it can have; returns the seconds.

        A clock that is right is not touched, so that a process which takes over from another continues to the
        millisecond.
        """
        moved = max(self._min_ahead, 0.0) + min(self._max_ahead, 0.0)
        self.own.move(moved)
        self._ahead -= moved
        self._min_ahead -= moved
        self._max_ahead -= moved
        return moved
