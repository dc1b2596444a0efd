"""Metrics of suspensions: their duration, and the capacity that they release."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from supervisor.domain.ids import JobName
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.observability.journal import Change, JobForgotten, NoticeChanged

Gpus = Callable[[JobName], float | None]
"""The GPUs of each worker of a job; None if that is unknown."""


def unknown_gpus(_job: JobName) -> None:
    """The `Gpus` of a stand-alone supervisor."""


_SUSPENDED = (Phase.SUSPENDED, Phase.RESUMING)
"""Two decisions may be reported as one change, so a short suspension is visible only as a resume."""

_ENDS = (Phase.RUNNING, Phase.TIMED_OUT, Phase.FINISHED)
_DURATIONS = (5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400)


@dataclass(slots=True)
class _Suspension:
    """One suspension; `free_since` is None while the job still holds its hosts, and once the next run is ordered."""

    since: float
    workers: int
    free_since: float | None = None


class Suspensions(Collector):
    """A listener of the journal.

    A job that was suspended before this process started counts from the start, with the workers that it asks for, as
    those of its last run are not stored.

    Args:
        registry: The registry that serves the metrics.
        gpus: Called whenever capacity has been released.
        now: Unix seconds.
    """

    name = "suspension metrics"

    def __init__(self, registry: CollectorRegistry, gpus: Gpus, now: Callable[[], float]) -> None:
        self._gpus = gpus
        self._now = now
        self._jobs: dict[JobName, _Suspension] = {}
        self._worker_seconds = 0.0
        self._gpu_seconds = 0.0
        self._seconds = Histogram(
            "job_supervisor_suspended_seconds",
            "Time from a suspension until the job runs again, times out or ends.",
            registry=registry,
            buckets=_DURATIONS,
        )
        registry.register(self)

    def begin(self, jobs: Iterable[SupervisedJob]) -> None:
        """Starts from the stored jobs."""
        for job in jobs:
            if job.decision.phase in (Phase.SUSPENDED, Phase.RESUMING):
                since = job.decision.waiting_since
                self._jobs[job.name] = _Suspension(self._now() if since is None else since, job.spec.requested_workers)
                self._follow(job, self._now())

    def on_change(self, change: Change) -> None:
        if isinstance(change, NoticeChanged):
            return
        if isinstance(change, JobForgotten):
            self._end(change.before.name, change.at)
            return
        before, after = change.before, change.after
        if after.decision.phase in _SUSPENDED and after.name not in self._jobs:
            had = after if before is None else before
            workers = len(had.decision.hosts - had.decision.exclusions) or after.spec.requested_workers
            self._jobs[after.name] = _Suspension(change.at, workers)
        if after.decision.phase in _ENDS:
            self._end(after.name, change.at)
        else:
            self._follow(after, change.at)

    def collect(self) -> Iterator[Metric]:
        now = self._now()
        for name in self._jobs:
            self._release(name, now)
        yield CounterMetricFamily(
            "job_supervisor_released_worker_seconds",
            "Seconds for which suspended jobs left the capacity of their workers to others, summed over workers.",
            self._worker_seconds,
        )
        yield CounterMetricFamily(
            "job_supervisor_released_gpu_seconds",
            "Seconds for which suspended jobs left their GPUs to others, summed over GPUs, if their pods request GPUs.",
            self._gpu_seconds,
        )

    def _follow(self, job: SupervisedJob, at: float) -> None:
        suspension = self._jobs.get(job.name)
        if suspension is None:
            return
        is_free = job.decision.phase is Phase.SUSPENDED and not job.decision.hosts
        if is_free and suspension.free_since is None:
            suspension.free_since = at
        elif not is_free:
            self._release(job.name, at)
            suspension.free_since = None

    def _end(self, name: JobName, at: float) -> None:
        if name in self._jobs:
            self._release(name, at)
            self._seconds.observe(max(0.0, at - self._jobs.pop(name).since))

    def _release(self, name: JobName, at: float) -> None:
        suspension = self._jobs[name]
        if suspension.free_since is None:
            return
        worker_seconds = suspension.workers * max(0.0, at - suspension.free_since)
        suspension.free_since = max(at, suspension.free_since)
        self._worker_seconds += worker_seconds
        self._gpu_seconds += worker_seconds * (self._gpus(name) or 0.0)
