"""Whether a loop still turns."""

from servicekit.clock import Clock

# A loop later than this many seconds hangs: the slowest thing on a loop takes one.
_GRACE = 10.0


class Pulse:
    """Each turn of a loop promises the next one; a promise broken by far means that the loop hangs."""

    __slots__ = ("_clock", "_due")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due = clock.monotonic()

    def beat(self, within: float) -> None:
        """The loop turns; it will again within so many seconds."""
        self._due = self._clock.monotonic() + within

    @property
    def alive(self) -> bool:
        """Whether the last promise was kept or may still be."""
        return self._clock.monotonic() <= self._due + _GRACE
