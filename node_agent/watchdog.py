"""Detects a loop that hangs, for the liveness probe."""

from servicekit.clock import Clock

# A loop that is later than this many seconds hangs: the slowest thing on a loop takes one.
_GRACE = 10.0


class Watchdog:
    """Each turn of a loop announces the next; a turn that is late by more than the grace means that the loop hangs."""

    __slots__ = ("_clock", "_due")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due = clock.monotonic()

    def feed(self, within: float) -> None:
        """Expects the next call within that many seconds."""
        self._due = self._clock.monotonic() + within

    @property
    def alive(self) -> bool:
        return self._clock.monotonic() <= self._due + _GRACE
