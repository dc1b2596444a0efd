"""Many samples in a few numbers."""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Summary:
    """Of samples in one unit: how many, and their distribution."""

    count: int
    p50: float
    p99: float
    maximum: float


class NoSamplesError(ValueError):
    """Nothing was measured, so there is nothing to report: the scenario is broken."""


def percentile(ordered: list[float], fraction: float) -> float:
    """The smallest sample that at least `fraction` (0 to 1) of all samples do not exceed: one that was really measured.

    Raises:
        NoSamplesError: `ordered` is empty.
    """
    if not ordered:
        raise NoSamplesError("no samples")
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


def summarize(samples: Iterable[float]) -> Summary:
    """The distribution of some samples.

    Raises:
        NoSamplesError: There are none.
    """
    ordered = sorted(samples)
    return Summary(len(ordered), percentile(ordered, 0.5), percentile(ordered, 0.99), percentile(ordered, 1.0))
