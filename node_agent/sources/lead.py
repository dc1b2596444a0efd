"""How much time an announcement leaves, by which clock."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

# Reclaims are announced minutes ahead: a Date that is further before one than this many seconds is wrong, or the
# announcement is, which the node's own clock then shows.
_SANE_LEAD = 3600
# And no announced machine is left running for so long: a Date that says it was is wrong, not the announcement.
_SANE_OVERRUN = 600


def seconds_left(announced: datetime, date: str | None, now: float) -> float:
    """Seconds from the answer to the deadline, by the clock that named the deadline.

    A node's clock that is wrong by a minute would shorten or lengthen the lead by a minute, so the answer's Date
    wins. It has whole seconds: within its second the node's clock may tell how much of it has passed.

    Args:
        announced: The instant that the source named.
        date: The Date header of the answer.
        now: The node's own clock, Unix seconds; it counts alone where the Date is missing or cannot be true.
    """
    named = announced.timestamp()
    then = _instant(date)
    if then is not None and -_SANE_OVERRUN <= named - then <= _SANE_LEAD:
        now = min(max(now, then), then + 1.0)
    return named - now


def _instant(date: str | None) -> float | None:
    """The Unix seconds of an HTTP date, which is GMT; None where there is none or it says no such thing."""
    try:
        instant = parsedate_to_datetime(date) if date else None
        if instant is not None and instant.tzinfo is None:
            # As `-0000` or no zone at all is read: left alone it would be taken for this machine's local time.
            instant = instant.replace(tzinfo=UTC)
        return instant.timestamp() if instant else None
    except (ValueError, OverflowError):
        return None
