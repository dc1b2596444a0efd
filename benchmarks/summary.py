"""Summaries of many samples."""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Summary:
    count: int
    p50: float
    p99: float
    maximum: float


class NoSamplesError(ValueError):
    """Nothing was measured: the scenario is broken."""


def percentile(ordered: list[float], fraction: float) -> float:
    """Return the smallest sample that is at least as large as `fraction` (0 to 1) of all samples.

    Raises:
        NoSamplesError: `ordered` is empty.
    """
    if not ordered:
        raise NoSamplesError("no samples")
    return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]


def summarize(samples: Iterable[float]) -> Summary:
    """Summarize samples.

    Raises:
        NoSamplesError: There are none.
    """
    ordered = sorted(samples)
    return Summary(len(ordered), percentile(ordered, 0.5), percentile(ordered, 0.99), percentile(ordered, 1.0))
