"""Shares of worker-time, exact or between two values."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShareRange:
    """A share that lies between two values, because processes have not said everything."""

    at_least: float
    at_most: float

    def __str__(self) -> str:
        least, most = percent(self.at_least), percent(self.at_most)
        return most if least == most else f"{least} to {most}"


def share(part: float, whole: float) -> float | None:
    """Returns a part of a whole; None of nothing."""
    return part / whole if whole else None


def percent(value: float | None) -> str:
    """Formats a share; one that is unknown as a dash."""
    return "-" if value is None else f"{value * 100:.1f} %"
