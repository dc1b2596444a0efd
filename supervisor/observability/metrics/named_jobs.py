"""Metrics of single jobs, for a bounded number of jobs."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from supervisor.domain.ids import JobName, bare_name, kind_of, namespace
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.observability.journal import Change, JobChanged, JobForgotten
from supervisor.observability.transitions import is_suspended

# `job` and `namespace` would collide with the labels of Prometheus' target.
_LABELS = ("job_namespace", "job_kind", "job_name")


@dataclass(slots=True)
class _Named:
    phase: Phase
    workers: int = 0
    over: bool = False
    suspensions: int = 0
    late_stops: int = 0
    steps_lost: int = 0


class NamedJobs(Collector):
    """A listener of the journal. The first jobs are named; a job that is over gives its place to a new one.

    Args:
        most: The most jobs that are named; 0 names none.
    """

    name = "metrics of named jobs"

    def __init__(self, most: int) -> None:
        self._most = most
        self._jobs: dict[JobName, _Named] = {}
        self._unnamed: set[JobName] = set()

    def begin(self, jobs: Iterable[SupervisedJob]) -> None:
        """Starts from the stored jobs; those that are not over come first."""
        for job in sorted(jobs, key=lambda job: (job.over, job.name)):
            self._follow(job)

    def on_change(self, change: Change) -> None:
        if isinstance(change, JobForgotten):
            self._jobs.pop(change.before.name, None)
            self._unnamed.discard(change.before.name)
        elif isinstance(change, JobChanged):
            named = self._follow(change.after)
            if named is not None and change.before is not None and is_suspended(change.before, change.after):
                named.suspensions += 1

    def on_late_stop(self, job: JobName) -> None:
        if named := self._jobs.get(job):
            named.late_stops += 1

    def on_steps_lost(self, job: JobName, steps: int) -> None:
        if named := self._jobs.get(job):
            named.steps_lost += steps

    def collect(self) -> Iterator[Metric]:
        phases = GaugeMetricFamily(
            "job_supervisor_job_phase", "The phase of a job; always 1.", labels=(*_LABELS, "phase")
        )
        workers = GaugeMetricFamily("job_supervisor_job_workers", "Workers of a running job.", labels=_LABELS)
        for name, job in self._jobs.items():
            phases.add_metric((*_labels(name), job.phase), 1)
            workers.add_metric(_labels(name), job.workers)
        yield phases
        yield workers
        yield self._counted("suspensions", "Suspensions of a job after a STOP.", lambda job: job.suspensions)
        yield self._counted("late_stops", "STOPs of a job that came too late.", lambda job: job.late_stops)
        yield self._counted("steps_lost", "Steps that a job had to repeat.", lambda job: job.steps_lost)
        yield GaugeMetricFamily(
            "job_supervisor_unnamed_jobs", "Jobs without metrics of their own.", value=len(self._unnamed)
        )

    def _counted(self, name: str, meaning: str, count: Callable[[_Named], int]) -> Metric:
        family = CounterMetricFamily(f"job_supervisor_job_{name}", meaning, labels=_LABELS)
        for job, named in self._jobs.items():
            family.add_metric(_labels(job), count(named))
        return family

    def _follow(self, job: SupervisedJob) -> _Named | None:
        """The series of a job, up to date; None if there is no place for it."""
        named = self._jobs.get(job.name)
        if named is None and not job.over:
            named = self._placed(job.name)
        if named is None:
            (self._unnamed.discard if job.over else self._unnamed.add)(job.name)
            return None
        named.phase, named.workers, named.over = job.decision.phase, len(job.workers), job.over
        return named

    def _placed(self, name: JobName) -> _Named | None:
        if len(self._jobs) >= self._most and (ended := _first_over(self._jobs.items())) is not None:
            del self._jobs[ended]
        if len(self._jobs) >= self._most:
            return None
        self._unnamed.discard(name)
        self._jobs[name] = _Named(Phase.WAITING)
        return self._jobs[name]


def _first_over(jobs: Collection[tuple[JobName, _Named]]) -> JobName | None:
    return next((name for name, job in jobs if job.over), None)


def _labels(name: JobName) -> tuple[str, str, str]:
    return namespace(name), kind_of(name), bare_name(name)
