"""Everything that a supervisor measures."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from servicekit.address import Address
from servicekit.clock import Clock
from servicekit.metrics import LabelLimiter, MetricsServer, log_errors_once, registry
from supervisor.domain.directive import Directive, Worker
from supervisor.domain.ids import JobName, Source
from supervisor.observability.hooks import LiveState, NodeLocations, unknown_location
from supervisor.observability.journal import Listener
from supervisor.observability.metrics.jobs import JobMetrics
from supervisor.observability.metrics.latencies import Latencies
from supervisor.observability.metrics.notices import MAX_SOURCES, NoticeMetrics
from supervisor.observability.metrics.state import StateCollector
from supervisor.observability.metrics.steps import StepsLost
from supervisor.observability.metrics.suspensions import Gpus, Suspensions, unknown_gpus
from supervisor.observability.timed_store import OPERATIONS
from supervisor.refusals import Refusals

_STORING = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_REVIEWING = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSources:
    """What there is on a cluster only.

    `events` counts Kubernetes Events by what became of them, `unread` the objects by kind that could not be read.
    """

    locations: NodeLocations = unknown_location
    gpus: Gpus = unknown_gpus
    events: Callable[[], Mapping[str, int]] = dict
    unread: Callable[[], Mapping[str, int]] = dict


NO_CLUSTER = ClusterSources()


class Metrics:
    """Of one supervisor, whether it leads or not; `for_leader` adds those of a leader.

    Nothing that is called here ever raises: what cannot be counted is lost, and logged once.

    Args:
        version: Of this supervisor.
        refusals: Counted elsewhere, served here.
        clock: The supervisor's.
    """

    def __init__(self, version: str, refusals: Refusals, clock: Clock) -> None:
        self._clock = clock
        self.registry = registry()
        Info("job_supervisor_build", "The version that runs.", registry=self.registry).info({"version": version})
        self._leader = Gauge(
            "job_supervisor_leader", "1 where this supervisor decides, 0 where it stands by.", registry=self.registry
        )
        self.registry.register(
            _Counts(
                "job_supervisor_refused",
                "What peers sent that was refused.",
                ("wire", "code"),
                lambda: {(wire, code): count for (wire, code), count in refusals.counts().items()},
            )
        )
        self._reviews = Counter(
            "job_supervisor_webhook_reviews", "New pods asked about.", ("outcome",), registry=self.registry
        )
        self._reviewing = Histogram(
            "job_supervisor_webhook_seconds", "To answer one.", registry=self.registry, buckets=_REVIEWING
        )

    def server(self, address: Address) -> MetricsServer:
        """What serves them."""
        return MetricsServer(self.registry, address, self._clock)

    @log_errors_once
    def on_review(self, outcome: str, seconds: float) -> None:
        """An API server was answered about a new pod."""
        self._reviews.labels(outcome).inc()
        self._reviewing.observe(seconds)

    def for_leader(self, may_act: Callable[[], bool], surroundings: ClusterSources = NO_CLUSTER) -> "LeaderMetrics":
        """Those of a leader; once."""
        self._leader.set_function(lambda: float(may_act()))
        return LeaderMetrics(self.registry, surroundings, self._clock)


class LeaderMetrics:
    """What a leader counts and measures; made before the parts are that tell it, and shown the rest by `attach`."""

    def __init__(self, registry: CollectorRegistry, surroundings: ClusterSources, clock: Clock) -> None:
        self._registry = registry
        self._clock = clock
        self._few = LabelLimiter(MAX_SOURCES)
        unread = Gauge(
            "job_supervisor_unread_objects",
            "Objects of the cluster that hold something which this version does not know.",
            ("kind",),
            registry=registry,
        )
        for kind in ("nodes", "pods"):
            unread.labels(kind).set_function(partial(_of, surroundings.unread, kind))
        self._notices = NoticeMetrics(registry, surroundings.locations, self._few)
        self._steps = StepsLost(registry)
        self._suspensions = Suspensions(registry, surroundings.gpus, clock.now)
        self._latencies: Latencies | None = None
        self._store_seconds = Histogram(
            "job_supervisor_store_seconds",
            "From asking for a change until it is durable.",
            ("operation",),
            registry=registry,
            buckets=_STORING,
        )
        self._store_failures = Counter(
            "job_supervisor_store_failures",
            "Changes that could not be made durable.",
            ("operation",),
            registry=registry,
        )
        for operation in OPERATIONS:
            # From 0 on: of a series that begins with its first failure, nobody sees that it has grown.
            self._store_failures.labels(operation)
        registry.register(
            _Counts(
                "job_supervisor_kubernetes_events",
                "Kubernetes Events that this supervisor wants to write, by what became of them.",
                ("outcome",),
                lambda: {(outcome,): count for outcome, count in surroundings.events().items()},
            )
        )

    def attach(self, live: LiveState) -> Sequence[Listener]:
        """Looks there from now on; returns those who are to hear of every change."""
        self._suspensions.begin(live.snapshot().jobs.values())
        self._registry.register(StateCollector(live, self._few))
        self._latencies = Latencies(self._registry, live.noticed, self._clock.now)
        jobs = JobMetrics(self._registry, live.noticed, live.policy)
        return (self._notices, jobs, self._suspensions, self._latencies, self._steps)

    @log_errors_once
    def on_directives_sent(self, job: JobName, directives: Collection[Directive]) -> None:
        """See `supervisor.fanout.processes.Told`."""
        if self._latencies is not None:
            self._latencies.on_directives_sent(job, directives)

    @log_errors_once
    def on_store_write(self, operation: str, seconds: float, *, durable: bool) -> None:
        """See `supervisor.observability.timed_store.Timing`."""
        if durable:
            self._store_seconds.labels(operation).observe(seconds)
        else:
            self._store_failures.labels(operation).inc()

    @log_errors_once
    def on_report_refused(self, source: Source) -> None:
        """A report on a notice was refused."""
        self._notices.on_report_refused(source)

    @log_errors_once
    def on_step(self, worker: Worker, step: int | None) -> None:
        """A training process has said which step it is at."""
        self._steps.on_step(worker, step)


@dataclass(frozen=True)
class _Counts(Collector):
    """What is counted elsewhere, served here."""

    name: str
    meaning: str
    labels: Sequence[str]
    counts: Callable[[], Mapping[tuple[str, ...], int]]

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(self.name, self.meaning, labels=self.labels)
        for labels, count in sorted(self.counts().items()):
            family.add_metric(labels, count)
        yield family


def _of(counts: Callable[[], Mapping[str, int]], kind: str) -> float:
    return counts().get(kind, 0)
