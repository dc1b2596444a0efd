"""From what was stored about jobs to what was decided about them, when and how often: pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSnapshot:
    """A job as it was seen at `at` (CLOCK_MONOTONIC)."""

    at: float
    job: str
    generation: int
    phase: str
    run: int
    excluded: frozenset[str]


class UndecidedError(AssertionError):
    """Nothing was decided about a job that had to be decided about: that is not slow but wrong."""


def first_delay(
    snapshots: Iterable[JobSnapshot], job: str, since: float, condition: Callable[[JobSnapshot], bool]
) -> float:
    """From an instant to the first sight of a job of which that is true.

    Raises:
        UndecidedError: It never was.
    """
    for snapshot in snapshots:
        if snapshot.job == job and snapshot.at >= since and condition(snapshot):
            return snapshot.at - since
    raise UndecidedError(f"what had to be decided about {job} never was")


def decisions(snapshots: Iterable[JobSnapshot], job: str, since: float, until: float) -> int:
    """How many decisions about a job were stored between two instants."""
    snapshots_of_job = _of_job(snapshots, job)
    before = {snapshot.generation for snapshot in snapshots_of_job if snapshot.at < since}
    return len({snapshot.generation for snapshot in snapshots_of_job if snapshot.at < until} - before)


def exclusion_changes(snapshots: Iterable[JobSnapshot], job: str, since: float, until: float) -> int:
    """How often the set of a job's excluded hosts became another one between two instants."""
    pairs = pairwise(_of_job(snapshots, job))
    return sum(since <= after.at < until and before.excluded != after.excluded for before, after in pairs)


def _of_job(snapshots: Iterable[JobSnapshot], job: str) -> list[JobSnapshot]:
    return [snapshot for snapshot in snapshots if snapshot.job == job]
