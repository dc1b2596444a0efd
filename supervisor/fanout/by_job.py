"""A mapping from jobs to what is kept about them, which also finds all registrations of one name."""

from collections.abc import Collection, Iterator
from typing import Generic, TypeVar

from supervisor.domain.ids import JobId, JobName

V = TypeVar("V")


class ByJob(Generic[V]):
    """Values by the id of a job.

    Nearly every name has one registration. There are several while the processes of an earlier job still have streams.
    """

    def __init__(self) -> None:
        self._names: dict[JobName, dict[JobId, V]] = {}

    def __iter__(self) -> Iterator[JobId]:
        return iter([job for jobs in self._names.values() for job in jobs])

    def __setitem__(self, job: JobId, value: V) -> None:
        self._names.setdefault(job.name, {})[job] = value

    def get(self, job: JobId) -> V | None:
        """The value of a job; None if it has none."""
        jobs = self._names.get(job.name)
        return None if jobs is None else jobs.get(job)

    def pop(self, job: JobId) -> V | None:
        """Removes and returns the value of a job; None if it has none."""
        jobs = self._names.get(job.name, {})
        value = jobs.pop(job, None)
        if not jobs:
            self._names.pop(job.name, None)
        return value

    def named(self, name: JobName) -> Collection[JobId]:
        """The registrations of a name that have a value."""
        jobs = self._names.get(name)
        return list(jobs) if jobs else ()

    def values(self) -> Iterator[V]:
        """All values."""
        return iter([value for jobs in self._names.values() for value in jobs.values()])
