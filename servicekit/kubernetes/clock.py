"""The cluster's clock, by which its objects name instants."""

from email.utils import parsedate_to_datetime

from servicekit.clock import Clock

_HALF = 0.5
"""Seconds: a Date is cut to whole ones."""


class ClusterClock:
    """Follows the `Date` of the API server's answers; before the first it is taken to be right here."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = 0.0
        self._least = self._most = 0.0

    def observe(self, date: str, seconds: float) -> None:
        """An answer has just come with that Date, so long after its request; one that is none changes nothing."""
        try:
            at = parsedate_to_datetime(date).timestamp()
        except (ValueError, OverflowError):
            return
        self._ahead = at + _HALF - self._clock.now()
        self._least, self._most = self._ahead - _HALF, self._ahead + _HALF + seconds

    def now(self) -> float:
        """Unix seconds, some half a second off."""
        return self._clock.now() + self._ahead

    def correct_own_clock(self) -> float:
        """Moves the process's own clock by what it is certainly off; returns those seconds.

        A clock that is right stays exactly as it is: whoever took over from a machine with another right one goes on to
        the millisecond.
        """
        moved = max(self._least, 0.0) + min(self._most, 0.0)
        self._clock.move(moved)
        self._ahead, self._least, self._most = self._ahead - moved, self._least - moved, self._most - moved
        return moved
