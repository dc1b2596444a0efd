"""Serves, by capacity pool, what jobs held and what that cost, and how often hosts went."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.core import Metric

from servicekit.metrics import LabelLimiter
from supervisor.domain.capacity import HasPool
from supervisor.domain.ledger import HeldOn
from supervisor.observability.ledger.totals import PoolTotals
from supervisor.observability.metrics.table import Samples, counter_family
from supervisor.observability.prices import PriceTable, WorkerPrice

_HOUR = 3600.0
_MAX_POOLS = 200
_UNKNOWN = "unknown"

_Labels = tuple[str, ...]


class PoolLabels:
    """The labels `cloud`, `zone` and `instance_type`, of a bounded number of pools: agents name machines."""

    def __init__(self) -> None:
        self._known = LabelLimiter(_MAX_POOLS)

    def of(self, machine: HasPool) -> _Labels:
        """Returns the labels of a machine's pool: `unknown` for what is unknown, `other` for all further pools."""
        return self._known.of(machine.cloud or _UNKNOWN, machine.zone or _UNKNOWN, machine.instance_type or _UNKNOWN)


@dataclass(slots=True)
class PoolMetrics:
    """The metrics of pools of a leader. Without `prices` all that was held has no price."""

    totals: PoolTotals
    labels: PoolLabels
    prices: PriceTable | None = None
    _worker_prices: dict[HeldOn, WorkerPrice] = field(default_factory=dict)

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics. What has no known price is in the seconds without one, and in no sum of money."""
        held, unpriced = Counter[_Labels](), Counter[_Labels]()
        cost, on_demand = Counter[_Labels](), Counter[_Labels]()
        gone: Counter[_Labels] = Counter()
        for on, seconds in self.totals.held.items():
            labels = (*self.labels.of(on), on.price_class)
            held[labels] += seconds  # type: ignore[assignment]
            unpriced[labels] += 0
            gone.update({(*labels, noticed): 0 for noticed in _NOTICED.values()})
            price = self._price(on)
            if price.paid is None or price.on_demand is None:
                unpriced[labels] += seconds  # type: ignore[assignment]
            elif self.prices is not None:
                cost[*labels, self.prices.currency] += price.paid * seconds / _HOUR  # type: ignore[assignment]
                on_demand[*labels, self.prices.currency] += price.on_demand * seconds / _HOUR  # type: ignore[assignment]
        for (pool, noticed), count in self.totals.gone.items():
            gone[*self.labels.of(pool), pool.price_class, _NOTICED[noticed]] += count
        served: dict[str, Samples] = {
            "pool_worker_seconds": held.items(),
            "pool_unpriced_worker_seconds": unpriced.items(),
            "pool_cost": cost.items(),
            "pool_on_demand_cost": on_demand.items(),
            "pool_hosts_gone": gone.items(),
        }
        for name, samples in served.items():
            yield counter_family(name, sorted(samples))

    def _price(self, on: HeldOn) -> WorkerPrice:
        """Looks a kind of machine up once: a table may have thousands of rows."""
        if on not in self._worker_prices:
            self._worker_prices[on] = WorkerPrice() if self.prices is None else self.prices.of_worker(on)
        return self._worker_prices[on]


_NOTICED = {True: "yes", False: "no"}
