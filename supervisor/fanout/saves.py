"""Keeps when rank 0 of each job last said that a checkpoint is complete. It is not stored."""

from collections.abc import Collection
from dataclasses import dataclass

from supervisor.domain.directive import Worker
from supervisor.domain.ids import JobId
from supervisor.domain.instant import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A complete checkpoint of `run`, reported at `at`; `seconds` is how long one took last, None is unknown."""

    run: int
    at: Instant
    seconds: float | None = None


class Saves:
    """The last checkpoint of each job."""

    def __init__(self) -> None:
        self._last: dict[JobId, Save] = {}

    def saved(self, worker: Worker, seconds: float | None, now: Instant) -> None:
        """Records a checkpoint that a process has reported; only rank 0's counts."""
        known = self._last.get(worker.job)
        if worker.rank != 0 or (known is not None and worker.run < known.run):
            return
        if seconds is None and known is not None:
            seconds = known.seconds
        self._last[worker.job] = Save(run=worker.run, at=now, seconds=seconds)

    def of(self, job: JobId) -> Save | None:
        """The last checkpoint of a job; None if this leader knows of none."""
        return self._last.get(job)

    def forget_others(self, jobs: Collection[JobId]) -> None:
        """Forgets all other jobs."""
        self._last = {job: save for job, save in self._last.items() if job in jobs}
