"""Tracks since when each job has been in its phase."""

from typing import TYPE_CHECKING

from supervisor.domain.job import SupervisedJob
from supervisor.observability.journal import Change, JobChanged, JobForgotten

if TYPE_CHECKING:
    from supervisor.domain.ids import JobName


class PhaseTracker:
    """A listener of the journal. It knows phases that began earlier only if the decision contains the instant."""

    name = "phases"

    def __init__(self) -> None:
        self._since: dict[JobName, float] = {}

    def on_change(self, change: Change) -> None:
        match change:
            case JobChanged(before, after, at) if before is None or before.decision.phase is not after.decision.phase:
                self._since[after.name] = at
            case JobForgotten(before, _):
                self._since.pop(before.name, None)

    def since(self, job: SupervisedJob) -> float | None:
        """The instant at which the job's phase began (Unix seconds); None if it is unknown."""
        known = self._since.get(job.name)
        if known is None and job.decision.stop is not None:
            return job.decision.stop.since
        return known
