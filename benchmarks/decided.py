"""From what was stored about jobs to what was decided about them, when and how often: pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A job as it was seen at `at` (CLOCK_MONOTONIC)."""

    at: float
    job: str
    generation: int
    phase: str
    run: int
    excluded: frozenset[str]


class UndecidedError(AssertionError):
    """Nothing was decided about a job that had to be decided about: that is not slow but wrong."""


def first_delay(seen: Iterable[Stored], job: str, since: float, what: Callable[[Stored], bool]) -> float:
    """From an instant to the first sight of a job of which that is true.

    Raises:
        UndecidedError: It never was.
    """
    for each in seen:
        if each.job == job and each.at >= since and what(each):
            return each.at - since
    raise UndecidedError(f"what had to be decided about {job} never was")


def decisions(seen: Iterable[Stored], job: str, since: float, until: float) -> int:
    """How many decisions about a job were stored between two instants."""
    sights = _sights(seen, job)
    before = {each.generation for each in sights if each.at < since}
    return len({each.generation for each in sights if each.at < until} - before)


def exclusion_changes(seen: Iterable[Stored], job: str, since: float, until: float) -> int:
    """How often the set of a job's excluded hosts became another one between two instants."""
    pairs = pairwise(_sights(seen, job))
    return sum(since <= after.at < until and before.excluded != after.excluded for before, after in pairs)


def _sights(seen: Iterable[Stored], job: str) -> list[Stored]:
    return [each for each in seen if each.job == job]
