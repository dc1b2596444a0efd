"""Parses the text of an announcement: empty, or one timestamp. Anything else is malformed."""

import re
from datetime import UTC, datetime, timedelta

from node_agent.sources import SourceUnavailable

# A timestamp has 20 bytes.
MAX_BYTES = 4096

# strptime alone also accepts "2015-1-5T1:2:3Z".
_TIMESTAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_LEAP_SECOND = b"T23:59:60Z"
_WITH_ZONE = re.compile(rb"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:\.\d{1,9})?(Z|[+-]\d\d:\d\d)")


def parse(body: bytes) -> datetime | None:
    """Returns the announced instant; None where nothing is announced.

    Raises:
        SourceUnavailable: The text is neither empty nor a timestamp such as `2015-01-05T18:02:00Z`.
    """
    text = body.strip()
    if not text:
        return None
    if not _TIMESTAMP.fullmatch(text):
        raise SourceUnavailable("malformed announcement")
    try:
        if text.endswith(_LEAP_SECOND):
            # Unix time has no such second: it is the first of the next day.
            return _instant(text.removesuffix(_LEAP_SECOND) + b"T23:59:59Z") + timedelta(seconds=1)
        return _instant(text)
    except (ValueError, OverflowError) as error:
        raise SourceUnavailable("malformed announcement") from error


def parse_with_zone(body: bytes) -> datetime | None:
    """Does the same for a timestamp in any zone (RFC 3339); parts of a second are dropped.

    Raises:
        SourceUnavailable: The text is neither empty nor a timestamp such as `2015-01-05T18:02:00+08:00`.
    """
    text = body.strip()
    if not text:
        return None
    found = _WITH_ZONE.fullmatch(text)
    if found is None:
        raise SourceUnavailable("malformed announcement")
    if found[2] == b"Z":
        return parse(found[1].replace(b" ", b"T") + b"Z")
    try:
        return datetime.fromisoformat((found[1] + found[2]).decode("ascii")).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise SourceUnavailable("malformed announcement") from error


def _instant(text: bytes) -> datetime:
    return datetime.strptime(text.decode("ascii"), "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
