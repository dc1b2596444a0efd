"""How long jobs are suspended, and what they release meanwhile."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from supervisor.domain.ids import JobName
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.observability.journal import Change, JobForgotten, NoticeChanged

Gpus = Callable[[JobName], float | None]
"""GPUs of each of a job's workers; None where that is not known."""


def unknown_gpus(_job: JobName) -> None:
    """Where nobody knows."""


_SUSPENDED = (Phase.SUSPENDED, Phase.RESUMING)
"""A suspension that was over at the next look is seen by the resume alone."""

_ENDS = (Phase.RUNNING, Phase.TIMED_OUT, Phase.FINISHED)
_DURATIONS = (5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 43200, 86400)


@dataclass(slots=True)
class _Suspension:
    """Of one job; `free_since` is None while its hosts are still its own or another run has been ordered."""

    since: float
    workers: int
    free_since: float | None = None


class Suspensions(Collector):
    """A listener of the journal.

    A job that was suspended before this process began counts from then on, with the workers that it asks for: what
    its last run had is not stored.

    Args:
        registry: Where it is served from.
        gpus: Asked whenever something has been released.
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
            "From a suspension until the job runs again, is given up or ends.",
            registry=registry,
            buckets=_DURATIONS,
        )
        registry.register(self)

    def begin(self, jobs: Iterable[SupervisedJob]) -> None:
        """These are stored already."""
        for job in jobs:
            if job.decision.phase in (Phase.SUSPENDED, Phase.RESUMING):
                since = job.decision.waiting_since
                self._jobs[job.name] = _Suspension(self._now() if since is None else since, job.spec.requested_workers)
                self._follow(job, self._now())

    def on_change(self, change: Change) -> None:
        """See `supervisor.observability.journal.Listener`."""
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
        """What has been released until now."""
        now = self._now()
        for name in self._jobs:
            self._release(name, now)
        yield CounterMetricFamily(
            "job_supervisor_released_worker_seconds",
            "Seconds in which workers of suspended jobs were left to others, of each worker.",
            self._worker_seconds,
        )
        yield CounterMetricFamily(
            "job_supervisor_released_gpu_seconds",
            "The same of each GPU, of jobs whose pods say how many they ask for.",
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
