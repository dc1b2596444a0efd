"""The metric of steps that a job repeats after a resume."""

from prometheus_client import CollectorRegistry, Counter

from supervisor.domain.ids import JobId
from supervisor.domain.order import Worker
from supervisor.observability.journal import Change, JobChanged, JobForgotten
from supervisor.observability.metrics.named_jobs import NamedJobs


class StepsLost:
    """A listener of the journal that also observes the steps that processes report.

    The acknowledgement of a STOP names the step that rank 0 had reached. The first step that rank 0 of the next run
    reports may already be a later one than its first, so the difference is a lower bound.

    Args:
        registry: The registry that serves the metric.
        named: Told of the jobs that lost steps.
    """

    name = "step metrics"

    def __init__(self, registry: CollectorRegistry, named: NamedJobs) -> None:
        self._named = named
        self._lost = Counter(
            "job_supervisor_steps_lost",
            "Steps between the last one of a stopped run and an earlier one at which the next run started, for jobs "
            "that report their steps.",
            registry=registry,
        )
        self._reached = dict[JobId, tuple[int, int]]()

    def on_change(self, change: Change) -> None:
        if isinstance(change, JobForgotten):
            self._reached.pop(change.before.id, None)
        if not isinstance(change, JobChanged):
            return
        job, answer = change.after.id, change.after.observed.acknowledgement
        if change.after.over:
            self._reached.pop(job, None)
        elif answer is not None and answer.step is not None and self._is_new(change):
            self._reached[job] = (answer.run, answer.step)

    def on_step(self, worker: Worker, step: int | None) -> None:
        reached = self._reached.get(worker.job)
        if reached is None or step is None or worker.rank != 0 or worker.run <= reached[0]:
            return
        del self._reached[worker.job]
        lost = max(0, reached[1] - step)
        self._lost.inc(lost)
        self._named.on_steps_lost(worker.job.name, lost)

    def _is_new(self, change: JobChanged) -> bool:
        before = None if change.before is None else change.before.observed.acknowledgement
        return before != change.after.observed.acknowledgement
