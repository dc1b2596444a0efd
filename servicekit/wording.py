"""Puts lengths of time and lists into the words of a sentence."""

from collections.abc import Sequence

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def duration(seconds: float) -> str:
    """Formats seconds as in `42 s`, `3 min 5 s`, `2 h 10 min` and `4 d 3 h`."""
    whole = max(0, round(seconds))
    for unit, name, part, least in ((_DAY, "d", _HOUR, "h"), (_HOUR, "h", _MINUTE, "min"), (_MINUTE, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // part
            return f"{whole // unit} {name} {rest} {least}" if rest else f"{whole // unit} {name}"
    return f"{whole} s"


def listed(names: Sequence[str]) -> str:
    """Joins texts as in `a`, `a and b`, `a, b and c`."""
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1] if names else "") if part)
