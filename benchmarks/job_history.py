"""Decisions derived from a job's stored history, as pure functions."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob:
    """A job as seen at `at` (CLOCK_MONOTONIC)."""

    at: float
    job: str
    generation: int
    phase: str
    run: int
    excluded: frozenset[str]


class UndecidedError(AssertionError):
    """A required decision about a job is missing, which is wrong, not slow."""


def is_stopping(snapshot: RecordedJob) -> bool:
    return snapshot.phase == "Stopping"


def has_exclusions(snapshot: RecordedJob) -> bool:
    return bool(snapshot.excluded)


def first_delay(
    snapshots: Iterable[RecordedJob], job: str, since: float, condition: Callable[[RecordedJob], bool]
) -> float:
    """Return the time from an instant to the first snapshot of a job that fulfils the condition.

    Raises:
        UndecidedError: No snapshot does.
    """
    for snapshot in snapshots:
        if snapshot.job == job and snapshot.at >= since and condition(snapshot):
            return snapshot.at - since
    raise UndecidedError(f"a required decision about {job} is missing")


def decisions(snapshots: Iterable[RecordedJob], job: str, since: float, until: float) -> int:
    """Count the decisions about a job that were stored between two instants."""
    snapshots_of_job = _of_job(snapshots, job)
    before = {snapshot.generation for snapshot in snapshots_of_job if snapshot.at < since}
    return len({snapshot.generation for snapshot in snapshots_of_job if snapshot.at < until} - before)


def exclusion_changes(snapshots: Iterable[RecordedJob], job: str, since: float, until: float) -> int:
    """Count the changes of a job's exclusions between two instants."""
    pairs = pairwise(_of_job(snapshots, job))
    return sum(since <= after.at < until and before.excluded != after.excluded for before, after in pairs)


def _of_job(snapshots: Iterable[RecordedJob], job: str) -> list[RecordedJob]:
    return [snapshot for snapshot in snapshots if snapshot.job == job]
