"""Formats values as plain text."""

from collections.abc import Sequence

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def duration(seconds: float) -> str:
    """`42 s`, `3 min 5 s`, `2 h 10 min`, `4 d 3 h`."""
    whole = max(0, round(seconds))
    for unit, name, part, least in ((_DAY, "d", _HOUR, "h"), (_HOUR, "h", _MINUTE, "min"), (_MINUTE, "min", 1, "s")):
        if whole >= unit:
            rest = whole % unit // part
            return f"{whole // unit} {name} {rest} {least}" if rest else f"{whole // unit} {name}"
    return f"{whole} s"


def age(seconds: float | None) -> str:
    """A column's short form: `42s`, `3m5s`, `7h10m`, `4d3h`; `-` if unknown."""
    return "-" if seconds is None else duration(seconds).replace(" min", "m").replace(" ", "")


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1] if names else "") if part)


def printable(line: str) -> str:
    """Replaces control characters in a line that may quote a peer; a newline would forge a row."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)
