"""Computes the seconds that an announcement leaves, by the most reliable clock."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

# Seconds. Reclaims are announced minutes ahead: where the Date is further ahead of the instant than this, one of the
# two is wrong, and the node's own clock decides.
_SANE_LEAD = 3600
# Seconds. No machine runs on for so long after its announced end: a Date that says so is wrong, not the announcement.
_SANE_OVERRUN = 600


def seconds_left(announced: datetime, date: str | None, now: float) -> float:
    """Returns the seconds from the answer to the announced instant, by the clock that named it.

    If the node's clock is wrong by a minute, the lead would be wrong by a minute, so the answer's Date wins. The Date
    has whole seconds; within its second the node's clock tells the fraction.

    Args:
        announced: The instant that the source named.
        date: The Date header of the answer.
        now: The node's own clock in Unix seconds; used alone where the Date is missing or cannot be right.
    """
    named = announced.timestamp()
    then = _instant(date)
    if then is not None and -_SANE_OVERRUN <= named - then <= _SANE_LEAD:
        now = min(max(now, then), then + 1.0)
    return named - now


def _instant(date: str | None) -> float | None:
    """Returns the Unix seconds of an HTTP date, which is GMT; None where it is missing or malformed."""
    try:
        instant = parsedate_to_datetime(date) if date else None
        if instant is not None and instant.tzinfo is None:
            # A zone of `-0000` or none: as a naive datetime it would be taken for this machine's local time.
            instant = instant.replace(tzinfo=UTC)
        return instant.timestamp() if instant else None
    except (ValueError, OverflowError):
        return None
