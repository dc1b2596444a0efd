"""The one place that reads time."""

import time


class Clock:
    """Wall time that never jumps within a process.

    The wall clock is read once, at construction, and carried forward by the monotonic clock from then on: a step of the
    system's clock (NTP, a resumed virtual machine) moves no deadline of a running process.
    """

    __slots__ = ("_offset",)

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Unix seconds."""
        return self._offset + time.monotonic()

    def wall(self) -> float:
        """Unix seconds of the system's clock, steps included: for instants that somebody else named by it just now."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds since an arbitrary point; only differences mean anything."""
        return time.monotonic()
