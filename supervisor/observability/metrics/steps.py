"""Steps that were trained, and are trained again after a resume: where training says which step it is at."""

from prometheus_client import CollectorRegistry, Counter

from supervisor.domain.directive import Worker
from supervisor.domain.ids import JobName
from supervisor.observability.journal import Change, JobChanged, JobForgotten


class StepsLost:
    """A listener of the journal, and of what processes say.

    A STOP's acknowledgement names the step that rank 0 had reached. What rank 0 of the next run says first is where
    that run is; as it may have trained on before it said anything, what is missing is the least that was lost.

    Args:
        registry: Where it is served from.
    """

    name = "step metrics"

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lost = Counter(
            "job_supervisor_steps_lost",
            "Steps between the one that a stopped run acknowledged and an earlier one that the next run began with; "
            "only of jobs that say their steps.",
            registry=registry,
        )
        self._reached = dict[JobName, tuple[int, int]]()

    def on_change(self, change: Change) -> None:
        """See `supervisor.observability.journal.Listener`."""
        if isinstance(change, JobForgotten):
            self._reached.pop(change.before.name, None)
        if not isinstance(change, JobChanged):
            return
        name, answer = change.after.name, change.after.observed.acknowledgement
        if change.after.over:
            self._reached.pop(name, None)
        elif answer is not None and answer.step is not None and self._is_new(change):
            self._reached[name] = (answer.run, answer.step)

    def on_step(self, worker: Worker, step: int | None) -> None:
        """A process has said that it is at that step."""
        reached = self._reached.get(worker.job)
        if reached is None or step is None or worker.rank != 0 or worker.run <= reached[0]:
            return
        del self._reached[worker.job]
        self._lost.inc(max(0, reached[1] - step))

    def _is_new(self, change: JobChanged) -> bool:
        before = None if change.before is None else change.before.observed.acknowledgement
        return before != change.after.observed.acknowledgement
