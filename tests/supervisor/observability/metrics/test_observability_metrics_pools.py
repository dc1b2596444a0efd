"""What jobs held in each capacity pool, what that cost, and how often hosts went there."""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.samples import Sample
from reclaim.v1 import reclaim_pb2 as wire

from servicekit.address import Address
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.domain.capacity import MachinePool, PriceClass
from supervisor.domain.ledger import HeldOn
from supervisor.observability.ledger.totals import MAX_KINDS, PoolTotals
from supervisor.observability.metrics.pools import PoolLabels, PoolMetrics
from supervisor.observability.metrics.wiring import Metrics, MetricsOptions
from supervisor.observability.prices import MachineTypePrices, PricesError, PriceTable, read_prices
from supervisor.refusals import Refusals
from tests.supervisor.observability.metrics.test_observability_metrics import Scraped, scrape
from tests.testkit.serving import serving
from tests.testkit.waiting import NotYet, until

_H = 3600.0
_SPOT = HeldOn(cloud="c", zone="z", instance_type="big", price_class=PriceClass.SPOT, gpus=2.0)
_FIXED = replace(_SPOT, price_class=PriceClass.ON_DEMAND)
_PRICES = PriceTable(
    as_of=date(2026, 11, 1),
    currency="EUR",
    machines=[
        MachineTypePrices(type="big", gpus=8.0, spot=4.0, on_demand=16.0),
        MachineTypePrices(type="only-spot", spot=1.0),
    ],
)


def _labels(on: HeldOn | MachinePool, **more: str) -> dict[str, str]:
    of = {"cloud": on.cloud, "zone": on.zone, "instance_type": on.instance_type}
    return {name: part or "unknown" for name, part in of.items()} | {"price_class": on.price_class} | more


def _served(totals: PoolTotals, prices: PriceTable | None = _PRICES) -> Scraped:
    return Scraped(list(PoolMetrics(totals, PoolLabels(), prices).collect()))


def test_held_seconds_are_priced_by_the_table_of_the_report() -> None:
    """A worker with two of eight GPUs pays for a quarter of the machine. Its seconds add up over kinds of workers."""
    totals = PoolTotals()
    totals.add_held(_SPOT, 10 * _H)
    totals.add_held(replace(_SPOT, gpus=8.0), 1 * _H)
    totals.add_held(_FIXED, 2 * _H)
    found = _served(totals)
    assert found.value("pool_worker_seconds_total", **_labels(_SPOT)) == 11 * _H
    assert found.value("pool_unpriced_worker_seconds_total", **_labels(_SPOT)) == 0
    assert found.value("pool_cost_total", **_labels(_SPOT, currency="EUR")) == 14.0
    assert found.value("pool_on_demand_cost_total", **_labels(_SPOT, currency="EUR")) == 56.0
    for name in ("pool_cost_total", "pool_on_demand_cost_total"):
        assert found.value(name, **_labels(_FIXED, currency="EUR")) == 8.0


@pytest.mark.parametrize(
    "on",
    [
        HeldOn(),
        replace(_SPOT, instance_type="small"),
        replace(_SPOT, price_class=PriceClass.UNKNOWN),
        replace(_SPOT, gpus=None),
        replace(_SPOT, instance_type="only-spot"),
    ],
    ids=["nothing", "type", "class", "gpus", "on-demand"],
)
def test_what_has_no_known_price_is_in_no_sum_and_is_counted(on: HeldOn) -> None:
    totals = PoolTotals()
    totals.add_held(on, _H)
    found = _served(totals)
    assert found.value("pool_unpriced_worker_seconds_total", **_labels(on)) == _H
    assert [family.samples for family in found.families if "cost" in family.name] == [[], []]


def test_without_a_table_nothing_has_a_price() -> None:
    totals = PoolTotals()
    totals.add_held(_SPOT, _H)
    assert _served(totals, None).value("pool_unpriced_worker_seconds_total", **_labels(_SPOT)) == _H


def test_hosts_that_went_are_counted_with_a_notice_and_without() -> None:
    """Both begin at 0 with what is held, as rate() does not see a series begin."""
    totals = PoolTotals()
    totals.add_held(_SPOT, 1.0)
    assert _served(totals).value("pool_hosts_gone_total", **_labels(_SPOT, noticed="no")) == 0
    totals.add_gone(_SPOT.pool, noticed=True)
    totals.add_gone(_SPOT.pool, noticed=True)
    totals.add_gone(MachinePool(), noticed=False)
    found = _served(totals)
    assert found.value("pool_hosts_gone_total", **_labels(_SPOT, noticed="yes")) == 2
    assert found.value("pool_hosts_gone_total", **_labels(_SPOT, noticed="no")) == 0
    assert found.value("pool_hosts_gone_total", **_labels(MachinePool(), noticed="no")) == 1


_KINDS = st.builds(
    HeldOn,
    zone=st.sampled_from(["", "a", "b"]),
    instance_type=st.sampled_from(["", "big", "small"]),
    price_class=st.sampled_from(PriceClass),
    gpus=st.none() | st.sampled_from([1.0, 8.0]),
)


@given(held=st.lists(st.tuples(_KINDS, st.floats(0, 1e6)), max_size=30))
def test_all_seconds_are_either_in_the_costs_or_without_a_price(held: list[tuple[HeldOn, float]]) -> None:
    totals = PoolTotals()
    for on, seconds in held:
        totals.add_held(on, seconds)
    found = {family.name: family.samples for family in _served(totals).families}
    whole, unpriced = (
        {_pool(sample.labels): sample.value for sample in found[f"job_supervisor_pool_{name}"]}
        for name in ("worker_seconds", "unpriced_worker_seconds")
    )
    assert sum(whole.values()) == pytest.approx(sum(seconds for _, seconds in held))
    costs = {_pool(sample.labels): sample.value for sample in found["job_supervisor_pool_cost"]}
    assert whole.keys() == unpriced.keys() >= costs.keys()
    for pool, seconds in whole.items():
        priced = seconds - unpriced[pool]
        hourly = {"spot": 4.0, "on_demand": 16.0}.get(pool[3], 0.0)
        # Between one GPU of eight and the whole machine.
        assert priced / _H * hourly / 8 - 1e-6 <= costs.get(pool, 0.0) <= priced / _H * hourly + 1e-6


def _pool(labels: dict[str, str]) -> tuple[str, ...]:
    return tuple(labels[name] for name in ("cloud", "zone", "instance_type", "price_class"))


def test_labels_and_sums_stay_few_whatever_agents_say() -> None:
    totals = PoolTotals()
    for number in range(2 * MAX_KINDS):
        made_up = replace(_SPOT, instance_type=f"type-{number}")
        totals.add_held(made_up, 1.0)
        totals.add_gone(made_up.pool, noticed=False)
    assert len(totals.held) == len(totals.gone) == MAX_KINDS + 1
    for family in _served(totals).families:
        assert len(family.samples) <= 2 * 201 * 2
    held = {_pool(sample.labels): sample.value for sample in _samples(_served(totals), "pool_worker_seconds")}
    assert (len(held), sum(held.values())) == (202, 2.0 * MAX_KINDS)
    assert held["other", "other", "other", "spot"] == MAX_KINDS - 200


def _samples(found: Scraped, name: str) -> Iterator[Sample]:
    return (sample for family in found.families if family.name == f"job_supervisor_{name}" for sample in family.samples)


@pytest.mark.parametrize("text", ["", "[]", "as_of: x", "{as_of: 2026-11-01, currency: E, machines: [{type: ''}]}"])
def test_a_file_that_is_no_table_is_refused_by_its_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    with pytest.raises(PricesError, match=r"prices\.yaml is no table of prices"):
        read_prices(file)


def _table(machine: str = "{type: a}", day: str = "2026-11-01", currency: str = "EUR") -> str:
    return f"{{as_of: {day}, currency: {currency}, machines: [{{type: b}}, {machine}]}}"


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        (_table("{type: a, spot: -0.01}"), r"machines[1].spot"),
        (_table("{type: a, spot: .nan}"), r"machines[1].spot"),
        (_table("{type: a, on_demand: .inf}"), r"machines[1].on_demand"),
        (_table("{type: a, gpus: .nan}"), r"machines[1].gpus"),
        (_table("{type: a, gpus: 0}"), r"machines[1].gpus"),
        (_table(f"{{type: a, spot: {'1' * 5000}}}"), "another day or number"),
        (_table(day="2026-13-45"), "as_of"),
        (_table(day="'2026-13-45'"), "as_of"),
        (_table(day="20261101"), "as_of"),
        (_table(currency="''"), "currency"),
        (_table(currency="E" * 21), "currency"),
    ],
)
def test_what_is_no_price_is_refused_by_the_name_of_its_entry(tmp_path: Path, text: str, entry: str) -> None:
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    with pytest.raises(PricesError, match=rf"prices\.yaml is no table of prices: .*{re.escape(entry)}"):
        read_prices(file)


async def test_a_running_job_is_counted_in_its_pool(tmp_path: Path) -> None:
    """With the notice and the going of a host, whose labels are the same."""
    clock, refusals = Clock(), Refusals()
    table = PriceTable(
        as_of=date(2026, 11, 1), currency="EUR", machines=[MachineTypePrices(type="big", spot=3.6, on_demand=36.0)]
    )
    metrics = Metrics("1", refusals, Bulkhead(Clock()), clock, MetricsOptions(prices=table))
    machine = wire.Machine(cloud="c", zone="z", instance_type="big", price_class=wire.PRICE_CLASS_SPOT)
    of = {"cloud": "c", "zone": "z", "instance_type": "big"}
    async with (
        metrics.server(Address("127.0.0.1", 0)).serving() as address,
        serving(tmp_path, hooks=metrics.for_leader(lambda: True), refusals=refusals) as served,
    ):
        agents = {node: await served.peers.agent(node, machine=machine) for node in ("n1", "n2")}
        await served.peers.running("job", ["n1", "n2"], min_workers=1)
        await agents["n2"].notices("n2", left=0.2)
        agents["n2"].call.cancel()

        async def has_gone() -> Scraped:
            found = await scrape(address)
            if not found.value("pool_hosts_gone_total", **of, price_class="spot", noticed="yes"):
                raise NotYet
            return found

        found = await until(has_gone, "a host has gone")
        assert found.value("pool_hosts_gone_total", **of, price_class="spot", noticed="yes") == 1
        assert found.value("reclaims_total", **of, source="metadata") == 1
        held = found.value("pool_worker_seconds_total", **of, price_class="spot")
        assert held is not None
        assert held > 0
        costs = [
            found.value(f"{name}_total", **of, price_class="spot", currency="EUR")
            for name in ("pool_cost", "pool_on_demand_cost")
        ]
        assert costs == pytest.approx([held / 1000, held / 100])
        assert found.value("pool_unpriced_worker_seconds_total", **of, price_class="spot") == 0
