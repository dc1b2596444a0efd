"""Keeps which checkpoints rank 0 of each job last said to be complete. It is not stored."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from supervisor.domain.ids import Instant, JobId
from supervisor.domain.order import Worker


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A complete checkpoint of `run`, reported at `at` by `process`.

    `seconds` is how long one took last. It is None if that is unknown, as is `step` then.
    """

    run: int
    at: Instant
    process: str = ""
    step: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class _SavedSteps:
    """The steps of the last checkpoint of a job and of the one before it; None is unknown."""

    last: int
    before: int | None = None


class Saves:
    """The last checkpoints of each job."""

    def __init__(self) -> None:
        self._last: dict[JobId, Save] = {}
        self._steps: dict[JobId, _SavedSteps] = {}

    def saved(self, worker: Worker, seconds: float | None, now: Instant, step: int | None = None) -> None:
        """Records a checkpoint that a process has reported; only rank 0's counts."""
        known = self._last.get(worker.job)
        if worker.rank != 0 or (known is not None and worker.run < known.run):
            return
        if seconds is None and known is not None:
            seconds = known.seconds
        self._last[worker.job] = Save(run=worker.run, at=now, process=worker.process, step=step, seconds=seconds)
        self.has(worker, step)

    def has(self, worker: Worker, step: int | None) -> None:
        """Records the step of the last checkpoint that a process knows of; only rank 0's counts."""
        known = self._steps.get(worker.job)
        if worker.rank != 0 or step is None or (known is not None and known.last == step):
            return
        self._steps[worker.job] = _SavedSteps(step, None if known is None else known.last)

    def resumed(self, worker: Worker, step: int) -> None:
        """Records the step of the checkpoint that a run has started from; only rank 0's counts."""
        if worker.rank != 0:
            return
        self._steps[worker.job] = _SavedSteps(step)
        if worker.job in self._last:  # Horovod's survivors go back to their last commit.
            self._last[worker.job] = replace(self._last[worker.job], step=None)

    def of(self, job: JobId) -> Save | None:
        """The last checkpoint of a job; None if this leader knows of none."""
        return self._last.get(job)

    def step_of(self, job: JobId) -> int | None:
        """The step of the last checkpoint of a job, or of the one that it started from; None if it is unknown."""
        known = self._steps.get(job)
        return None if known is None else known.last

    def step_before(self, job: JobId, step: int | None) -> int | None:
        """The step of the last checkpoint before a failed one of `step`, of which rank 0 may have saved its part."""
        known = self._steps.get(job)
        if known is None or step is None or known.last < step:
            return None if known is None else known.last
        return known.before if known.before is not None and known.before < step else None

    def is_older(self, worker: Worker, step: int | None) -> bool:
        """Whether the process has already reported a checkpoint of a later step: it saves in the background."""
        known = self._last.get(worker.job)
        if known is None or known.step is None or step is None or known.run != worker.run:
            return False
        return known.process == worker.process and step < known.step

    def forget_others(self, jobs: Collection[JobId]) -> None:
        """Forgets all other jobs."""
        self._last = {job: save for job, save in self._last.items() if job in jobs}
        self._steps = {job: steps for job, steps in self._steps.items() if job in jobs}
