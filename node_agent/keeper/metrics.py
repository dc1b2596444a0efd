"""Defines and records the metrics of the keeper."""

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import Counter, Info
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from node_agent.keeper.ledger import Ledger
from node_agent.keeper.refusals import RefusalCode
from servicekit.bulkhead import Bulkhead
from servicekit.metrics import guarded, registry

# Present from the start: an increase from nothing to 1 would not be seen.
_GUARDED = ("callback", "expiry", "metrics", "removal", "request")

_READ = {False: "no", True: "yes"}


class KeeperMetrics:
    """Records metrics in hooks that the keeper and its server call. `observe` adds what each scrape reads."""

    def __init__(self, version: str, bulkhead: Bulkhead) -> None:
        self.bulkhead = bulkhead
        self.registry = registry()
        Info(
            "state_keeper_build", "Has the version of the keeper as its label, and is 1.", registry=self.registry
        ).info({"version": version})
        self._kept = Counter(
            "state_keeper_kept_parts", "Counts parts that were received whole.", registry=self.registry
        )
        self._expired = Counter(
            "state_keeper_expired_parts",
            "Counts parts that were removed at their time, by whether somebody had read them.",
            ("read",),
            registry=self.registry,
        )
        for read in _READ.values():
            self._expired.labels(read)
        self._refused = Counter(
            "state_keeper_refused_requests",
            "Counts refused requests and connections, by the reason.",
            ("code",),
            registry=self.registry,
        )
        for code in RefusalCode:
            self._refused.labels(code)

    def observe(self, ledger: Ledger, capacity: int) -> None:
        """Adds the present state of the ledger to each scrape; to be called once. `capacity` is in bytes."""
        self.registry.register(_KeeperStateCollector(ledger, capacity, self.bulkhead))

    @guarded
    def on_kept(self, count: int) -> None:
        self._kept.inc(count)

    @guarded
    def on_expired(self, count: int, were_read: bool) -> None:  # noqa: FBT001 - as it is called
        self._expired.labels(_READ[were_read]).inc(count)

    @guarded
    def on_refused(self, code: RefusalCode) -> None:
        self._refused.labels(code).inc()


@dataclass(frozen=True)
class _KeeperStateCollector(Collector):
    """Reads the present state of the ledger at each scrape."""

    ledger: Ledger
    capacity: int
    bulkhead: Bulkhead

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "state_keeper_bytes",
            "Is the memory that parts take, also those that are being received.",
            self.ledger.taken,
        )
        yield GaugeMetricFamily(
            "state_keeper_capacity_bytes", "Is the most memory that parts may take at once.", self.capacity
        )
        yield GaugeMetricFamily("state_keeper_states", "Counts states of which a part is kept.", self.ledger.states)
        errors = CounterMetricFamily(
            "state_keeper_internal_errors",
            "Counts unexpected exceptions, by the part of the keeper that raised them.",
            labels=("where",),
        )
        for where in sorted({*_GUARDED, *self.bulkhead.counts}):
            errors.add_metric((where,), self.bulkhead.counts[where])
        yield errors
