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

    def told(self, date: str) -> None:
        """An answer has just come with that Date; one that is none, or none at all, changes nothing."""
        try:
            at = parsedate_to_datetime(date).timestamp()
        except (ValueError, OverflowError):
            return
        self._ahead = at + _HALF - self._clock.now()

    def now(self) -> float:
        """Unix seconds, some half a second off."""
        return self._clock.now() + self._ahead
