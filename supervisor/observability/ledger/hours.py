"""Adds up counts of workers over time, by hour and job."""

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from servicekit.clock import Clock
from supervisor.domain.ids import JobName

HOUR = 3600.0

MAX_WAITING = 50_000
"""Hours of jobs that wait for the database, about 20 MB."""

_LATE_SECONDS = 300.0
"""How long after its end an hour is kept: processes speak once a minute, and two clocks do not agree to the second."""

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True, order=True)
class LedgerHour:
    """An hour of one job: `begins` is a Unix instant, a multiple of 3600."""

    begins: float
    job: JobName


@dataclass(slots=True)
class _Present(Generic[K]):
    """How many workers a job has by key since an instant of the monotonic clock."""

    since: float
    workers: Mapping[K, int]


class HourlySums(Generic[K]):
    """The worker-seconds of each job by hour and key, until they are written.

    A count holds until the next one of its job. Durations are those of the monotonic clock: a wall clock that is set
    adds nothing, and only moves what follows to other hours.

    Args:
        clock: Of both kinds.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._present: dict[JobName, _Present[K]] = {}
        self._hours: dict[LedgerHour, dict[K, float]] = {}
        self._changed: set[LedgerHour] = set()

    def __contains__(self, hour: object) -> bool:
        return hour in self._hours

    @property
    def jobs(self) -> tuple[JobName, ...]:
        """The jobs that have a count."""
        return tuple(self._present)

    def put(self, job: JobName, workers: Mapping[K, int]) -> None:
        """Sets the count of a job. What it had until now must have been counted."""
        self._present[job] = _Present(self._clock.monotonic(), workers)

    def forget(self, job: JobName) -> None:
        """Forgets the count of a job, but not its hours."""
        self._present.pop(job, None)

    def count(self, job: JobName) -> list[tuple[LedgerHour, Mapping[K, int], float]]:
        """Counts a job until now. Returns the seconds since it was counted last, and its count then, by hour."""
        present = self._present.get(job)
        if present is None:
            return []
        now, at = self._clock.monotonic(), self._clock.now()
        seconds, present.since = now - present.since, now
        if not present.workers:
            return []
        stretches = [(LedgerHour(begins, job), present.workers, part) for begins, part in _by_hour(at - seconds, at)]
        for hour, workers, part in stretches:
            kept = self._hours.setdefault(hour, {})
            for key, number in workers.items():
                kept[key] = kept.get(key, 0.0) + number * part
            self._changed.add(hour)
        if len(self._hours) > MAX_WAITING:
            self._give_up_earliest()
        return stretches

    def move(self, hour: LedgerHour, source: K, shares: Mapping[K, float], worker_seconds: float) -> None:
        """Moves worker-seconds of an hour from one key to others, in these shares; no more than it has."""
        kept = self._hours[hour]
        moved = min(worker_seconds, kept.get(source, 0.0))
        kept[source] = kept.get(source, 0.0) - moved
        for key, share in shares.items():
            kept[key] = kept.get(key, 0.0) + moved * share
        self._changed.add(hour)

    def waiting(self) -> Mapping[LedgerHour, Mapping[K, float]]:
        """Returns the hours that have changed since they were written, whole."""
        return {hour: dict(self._hours[hour]) for hour in sorted(self._changed)}

    def _give_up_earliest(self) -> None:
        """Gives up the earliest hours, of all jobs: then nobody has counted in them, and the report says so."""
        kept = 0
        for begins, number in sorted(Counter(hour.begins for hour in self._hours).items(), reverse=True):
            kept += number
            if kept > MAX_WAITING:
                self._hours = {hour: counted for hour, counted in self._hours.items() if hour.begins > begins}
                self._changed = {hour for hour in self._changed if hour.begins > begins}
                return

    def written(self, hours: Mapping[LedgerHour, Mapping[K, float]]) -> None:
        """Hears that hours were written as `waiting` has returned them. Hours that are over are then forgotten."""
        self._changed -= {hour for hour, counted in hours.items() if self._hours.get(hour) == counted}
        over = self._clock.now() - HOUR - _LATE_SECONDS
        self._hours = {
            hour: counted for hour, counted in self._hours.items() if hour.begins > over or hour in self._changed
        }


def _by_hour(since: float, until: float) -> Iterator[tuple[float, float]]:
    """Yields the beginning of each hour between two instants, with the seconds that lie in it."""
    while since < until:
        begins = since // HOUR * HOUR
        end = min(until, begins + HOUR)
        yield begins, end - since
        since = end
