"""Builds the metrics of a supervisor."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Info
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from servicekit.address import Address
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.metrics import LabelLimiter, MetricsServer, guarded, registry
from supervisor.domain.ids import JobName, Source
from supervisor.domain.order import ProcessDirective, Worker
from supervisor.observability.hooks import OPERATIONS, Gpus, LiveState, MetricsHooks
from supervisor.observability.journal import ChangeListener
from supervisor.observability.metrics import jobs, notices, pools, state, table
from supervisor.observability.prices import PriceTable
from supervisor.refusals import Code, Refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSources:
    """Values that exist only on a cluster.

    `events` counts Kubernetes Events by outcome, `unread` counts the objects that could not be decoded, by each kind
    that there is.
    """

    gpus: Gpus = lambda _job: None
    events: Callable[[], Mapping[str, int]] = dict
    unread: Callable[[], Mapping[str, int]] = dict


NO_CLUSTER = ClusterSources()


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOptions:
    """The most jobs with metrics of their own, and what machines cost; None if that is unknown."""

    named_jobs: int = 0
    prices: PriceTable | None = None


class Metrics:
    """The metrics of a supervisor, leading or not; `for_leader` adds those of a leader.

    Its methods never raise: what cannot be counted is lost, and logged.

    Args:
        version: The version of this supervisor.
        refusals: The counts of refused messages.
        bulkhead: The counts of internal errors; it also keeps those of metrics.
        clock: The supervisor's clock.
        options: What operators choose.
    """

    def __init__(
        self,
        version: str,
        refusals: Refusals,
        bulkhead: Bulkhead,
        clock: Clock,
        options: MetricsOptions | None = None,
    ) -> None:
        self.bulkhead = bulkhead
        self._clock = clock
        self._options = MetricsOptions() if options is None else options
        self.registry = registry()
        Info("job_supervisor_build", "Version of this supervisor.", registry=self.registry).info({"version": version})
        self._leader = table.gauge(self.registry, "leader")
        self.registry.register(_Computed(table.counter_family, "refused", refusals.counts.items))

        def internal_errors() -> table.Samples:
            """Counts what the guards kept, and what peers' requests raised."""
            counts = bulkhead.counts.copy()
            for (wire, code), count in refusals.counts.items():
                if code is Code.INTERNAL:
                    counts[wire.value] += count
            return [((where,), count) for where, count in counts.items()]

        self.registry.register(_Computed(table.counter_family, "internal_errors", internal_errors))
        self._reviews = table.counter(self.registry, "webhook_reviews")
        self._reviewing = table.histogram(self.registry, "webhook_seconds")

    def server(self, address: Address) -> MetricsServer:
        return MetricsServer(self.registry, address, self._clock, self.bulkhead)

    @guarded
    def on_review(self, outcome: str, seconds: float) -> None:
        """Called when the webhook has answered an admission review."""
        self._reviews.labels(outcome).inc()
        self._reviewing.observe(seconds)

    def for_leader(self, may_act: Callable[[], bool], surroundings: ClusterSources = NO_CLUSTER) -> "LeaderMetrics":
        """Adds the metrics of a leader. Call it once."""
        self._leader.set_function(lambda: float(may_act()))
        return LeaderMetrics(self.registry, surroundings, self.bulkhead, self._clock, self._options)


class LeaderMetrics(MetricsHooks):
    """The metrics of a leader: created before its components, whose state `attach` gives access to."""

    def __init__(
        self,
        registry: CollectorRegistry,
        surroundings: ClusterSources,
        bulkhead: Bulkhead,
        clock: Clock,
        options: MetricsOptions,
    ) -> None:
        self.bulkhead = bulkhead
        self._registry = registry
        self._clock = clock
        self._sources = LabelLimiter(notices.MAX_SOURCES)
        self._pools = pools.PoolLabels()
        self._prices = options.prices
        self._notices = notices.NoticeMetrics(registry, self._sources, self._pools)
        self._named = jobs.NamedJobs(options.named_jobs)
        self._steps = jobs.StepsLost(registry, self._named)
        self._suspensions = state.Suspensions(registry, surroundings.gpus, clock.now)
        self._latencies: notices.Latencies | None = None
        self._store_seconds = table.histogram(registry, "store_seconds")
        self._store_failures = table.counter(registry, "store_failures")
        for operation in OPERATIONS:
            # Starts at 0: rate() cannot see the growth of a series that starts with its first failure.
            self._store_failures.labels(operation)
        unread, events = surroundings.unread, surroundings.events
        for computed in (
            _Computed(
                table.gauge_family, "unread_objects", lambda: [((kind,), count) for kind, count in unread().items()]
            ),
            _Computed(
                table.counter_family, "kubernetes_events", lambda: [((how,), count) for how, count in events().items()]
            ),
        ):
            registry.register(computed)

    def attach(self, live: LiveState) -> Sequence[ChangeListener]:
        """Implements `supervisor.observability.hooks.MetricsHooks`, as the methods below do."""
        self._suspensions.begin(live.snapshot().jobs.values())
        self._named.begin(live.snapshot().jobs.values())
        self._registry.register(self._named)
        self._notices.machine = live.machine_of
        priced = pools.PoolMetrics(live.ledger.totals, self._pools, self._prices)
        self._registry.register(state.StateCollector(live, self._sources, self.bulkhead, priced))
        self._latencies = notices.Latencies(
            self._registry, live.noticed, self._clock.now, traced=live.spans is not None
        )
        agreements = jobs.AgreementMetrics(self._registry)
        counted = jobs.JobMetrics(self._registry, live.noticed, live.policy, self._named)
        # Named jobs come first, so that a job has its place when another listener reports something about it.
        return (self._named, self._notices, counted, agreements, self._suspensions, self._latencies, self._steps)

    @guarded
    def on_directives_sent(self, job: JobName, directives: Collection[ProcessDirective]) -> None:
        if self._latencies is not None:
            self._latencies.on_directives_sent(job, directives)

    @guarded
    def on_store_write(self, operation: str, seconds: float, *, durable: bool) -> None:
        if durable:
            self._store_seconds.labels(operation).observe(seconds)
        else:
            self._store_failures.labels(operation).inc()

    @guarded
    def on_report_refused(self, source: Source) -> None:
        self._notices.on_report_refused(source)

    @guarded
    def on_step(self, worker: Worker, step: int | None) -> None:
        self._steps.on_step(worker, step)


@dataclass(frozen=True)
class _Computed(Collector):
    """Serves a metric whose samples a function returns."""

    family: Callable[[str, table.Samples], Metric]
    name: str
    samples: Callable[[], table.Samples]

    def collect(self) -> Iterator[Metric]:
        yield self.family(self.name, sorted(self.samples()))
