"""Bounds the numbers and texts that come from outside. Pure.

Tenants write annotations, manifests, Events and hellos, so any number in them may be wrong or hostile. A number beyond
its bound is no number: whoever reads it then says so on the object, and the size of the object bounds the work.
"""

import re
from collections.abc import Hashable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MAX_HOSTS = 10_000
"""Hosts of one job: its stored lists of hosts have as many entries at most. 10,000 names take 13 ms and 1 MB."""

MAX_LISTED_WORKERS = 100_000
"""The largest number of workers in a stored job: an elastic job may allow more workers than it ever gets."""

MAX_ROLES = 100
"""Roles, tasks or replicated jobs of one job. Each has a pod template, which takes 50 µs to read."""

MAX_SLOTS = 10_000
"""Processes of one worker."""

SHORTEST_STEP_SECONDS = 1e-6
"""A training step that takes less time is a wrong measurement."""

LONGEST_SECONDS = 10 * 365 * 86400.0
"""Ten years: the longest duration that anybody may ask for."""

FIRST_INSTANT, LAST_INSTANT = 0.0, 221845392000.0
"""Unix seconds of the years 1970 and 9000: an offset of time zones and a lead can be added without an overflow."""

MAX_COUNT = 2**31 - 1
"""Restarts and the like, as controllers count them."""

_MAX_DIGITS = 18
"""`int` takes quadratic time for long numbers, and refuses those of more than 4,300 digits with a ValueError."""

_MAX_TEXT = 512

_DURATION = re.compile(r"([0-9]{1,18})([smhd]?)", re.ASCII)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

DURATION_FORM = "a whole number of seconds, or one with the unit s, m, h or d, such as 600 or 10m"


def whole(text: str | None, most: int) -> int | None:
    """Parses a whole number from 0 to `most` in ASCII digits; returns None for any other text."""
    if text is None or not text.isascii() or not text.isdecimal() or len(text) > _MAX_DIGITS:
        return None
    number = int(text)
    return number if number <= most else None


def keep_newest(kept: dict[K, V], key: K, value: V, most: int) -> None:
    """Keeps a value, and forgets the oldest ones of more than `most`."""
    kept.pop(key, None)
    while len(kept) >= most:
        del kept[next(iter(kept))]
    kept[key] = value


def counted(number: int | None) -> int:
    """Returns the count that a controller wrote, at most the bound; 0 if there is none."""
    return min(max(0, number or 0), MAX_COUNT)


def duration(text: str | None) -> float | None:
    """Parses seconds in a text such as `600` or `10m`, up to `LONGEST_SECONDS`; returns None for any other text."""
    found = None if text is None else _DURATION.fullmatch(text)
    if found is None:
        return None
    seconds = float(int(found[1]) * _UNITS[found[2]])
    return seconds if seconds <= LONGEST_SECONDS else None


def pace(step_seconds: float | None) -> float | None:
    """Returns the seconds of a training step; None if the number is too small for a step, such as 5e-324."""
    return None if step_seconds is None or not step_seconds >= SHORTEST_STEP_SECONDS else step_seconds


def unix_seconds(instant: datetime | None) -> float | None:
    """Returns the Unix seconds of an instant within the bounds, else None. An instant without an offset is in UTC."""
    if instant is None:
        return None
    seconds = _aware(instant).timestamp()
    return seconds if FIRST_INSTANT <= seconds <= LAST_INSTANT else None


def nearest_seconds(instant: datetime) -> float:
    """Returns the Unix seconds of an instant; an instant beyond a bound counts as the bound."""
    return min(max(FIRST_INSTANT, _aware(instant).timestamp()), LAST_INSTANT)


def instant_of(seconds: float) -> datetime:
    """Returns the instant of Unix seconds; seconds beyond a bound count as the bound."""
    return datetime.fromtimestamp(min(max(FIRST_INSTANT, seconds), LAST_INSTANT), UTC)


def later(instant: datetime, seconds: float) -> datetime | None:
    """Adds seconds to an instant; returns None if the instant or the sum is beyond the bounds."""
    at = unix_seconds(instant)
    if at is None or not FIRST_INSTANT <= at + seconds <= LAST_INSTANT:
        return None
    return _aware(instant) + timedelta(seconds=seconds)


def one_line(text: str) -> str:
    """Cuts a text to 512 characters and replaces each character that is not printable by a space.

    A text may quote anything, and its author must neither control a terminal nor add a line to a log or a table. Use it
    for texts only: a name with such a character has to be refused.
    """
    return "".join(letter if letter.isprintable() else " " for letter in text[:_MAX_TEXT])


def _aware(instant: datetime) -> datetime:
    # Without an offset `timestamp` asks the machine's time zone, and fails in the year 1; and it cannot be compared.
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
