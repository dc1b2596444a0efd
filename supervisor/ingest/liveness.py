"""Whether an agent is still there, counted in turns of one timer for all streams.

Turns and not seconds: a supervisor that was blocked itself, for example by thousands of handshakes, did not read
either, and lost 4,700 of 5,000 agents at once when it used the clock.
"""

from enum import Enum, auto

_SILENT_HEARTBEATS = 3
_BLOCKED_TURNS = 3


class Verdict(Enum):
    """What a turn found."""

    FINE = auto()
    HEARTBEAT_DUE = auto()
    SILENT = auto()
    """Nothing was heard for three heartbeats."""
    NOT_READING = auto()
    """One write has waited for three turns."""


class Liveness:
    """Counts the turns since a peer was heard, and since it was written to.

    Args:
        interval: Turns between heartbeats, the same both ways.
    """

    __slots__ = ("_blocked", "_interval", "_unheard", "_unsent")

    def __init__(self, interval: int) -> None:
        self._interval = interval
        self._unheard = self._unsent = self._blocked = 0

    def heard(self) -> None:
        """A message has come."""
        self._unheard = 0

    def written(self) -> None:
        """A write has ended."""
        self._unsent = self._blocked = 0

    def turn(self, *, is_writing: bool, is_reading: bool, is_awaited: bool) -> Verdict:
        """Counts a turn.

        Args:
            is_writing: Whether a write waits.
            is_reading: Whether this side waits for a message. While it stores one, it hears nothing of its peer.
            is_awaited: Whether the peer waits for an answer. It then has a heartbeat each turn, as that is how it tells
                a slow store from a supervisor that hangs.
        """
        self._unheard += is_reading
        self._unsent += 1
        self._blocked += is_writing
        if self._blocked >= _BLOCKED_TURNS:
            return Verdict.NOT_READING
        if self._unheard >= _SILENT_HEARTBEATS * self._interval:
            return Verdict.SILENT
        is_due = is_awaited or self._unsent >= self._interval
        return Verdict.HEARTBEAT_DUE if is_due and not is_writing else Verdict.FINE
