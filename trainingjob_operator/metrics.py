"""Exposes the operator's metrics."""

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import Counter, Histogram, Info
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from servicekit.bulkhead import Bulkhead
from servicekit.metrics import guarded, registry
from trainingjob_operator.api import Phase, TrainingJob

_SECONDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 1)
_LOOPS = ("callback", "metrics", "trainingjob", "watch")


class OperatorMetrics:
    """Records what the controller does, by hooks that it calls; `observe` adds what each scrape collects."""

    def __init__(self, version: str, bulkhead: Bulkhead) -> None:
        self.bulkhead = bulkhead
        self.registry = registry()
        Info("trainingjob_operator_build", "The version that runs.", registry=self.registry).info({"version": version})
        self._changes = Counter(
            "trainingjob_operator_changes", "Changes that were begun, by their kind.", ("kind",), registry=self.registry
        )
        self._deciding = Histogram(
            "trainingjob_operator_deciding_seconds",
            "Seconds that one decision about one job took.",
            registry=self.registry,
            buckets=_SECONDS,
        )

    def observe(self, jobs: Callable[[], Iterable[TrainingJob]], leads: Callable[[], bool]) -> None:
        """Adds the jobs and the leadership to each scrape; to be called once."""
        self.registry.register(_JobsCollector(jobs, leads, self.bulkhead))

    @guarded
    def on_reconciled(self, seconds: float) -> None:
        """Notes that the controller has decided about a job."""
        self._deciding.observe(seconds)

    @guarded
    def on_change(self, kind: str) -> None:
        """Notes that the controller begins a change."""
        self._changes.labels(kind).inc()


@dataclass(frozen=True)
class _JobsCollector(Collector):
    """Reads the jobs at each scrape."""

    jobs: Callable[[], Iterable[TrainingJob]]
    leads: Callable[[], bool]
    bulkhead: Bulkhead

    def collect(self) -> Iterator[Metric]:
        counts = Counts(job.status.phase for job in self.jobs())
        phases = GaugeMetricFamily("trainingjob_operator_jobs", "TrainingJobs by their phase.", labels=("phase",))
        for phase in Phase:
            phases.add_metric((phase.value or "New",), counts[phase.value])
        yield phases
        yield GaugeMetricFamily("trainingjob_operator_leader", "1 while this process may act.", float(self.leads()))
        errors = CounterMetricFamily(
            "trainingjob_operator_internal_errors",
            "Exceptions that nobody foresaw, by the part of the operator that raised them.",
            labels=("where",),
        )
        for where in sorted({*_LOOPS, *self.bulkhead.counts}):
            errors.add_metric((where,), self.bulkhead.counts[where])
        yield errors
