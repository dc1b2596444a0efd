"""The page of metrics names what there is, no more and no less."""

import re
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from node_agent.channel import SupervisorEndpoint
from node_agent.keeper.ledger import Bounds, Ledger
from node_agent.keeper.metrics import KeeperMetrics
from node_agent.metrics import AgentMetrics
from node_agent.node import ThisNode
from node_agent.outbox import NoticeOutbox
from node_agent.stream import SupervisorUplink
from servicekit.address import Address
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.observability.metrics.wiring import Metrics
from supervisor.refusals import Refusals
from supervisor.store.interface import Snapshot
from tests.supervisor.observability.metrics.observability_metrics import live

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"

_ROW = re.compile(r"^\| `(?P<name>[a-z_]+)` \| (?P<kind>[a-z]+) \| (?P<labels>[^|]*) \| [^|]+ \|$", re.MULTILINE)
_SUFFIXES = {"counter": "_total", "info": "_info"}


def supervisors() -> CollectorRegistry:
    clock = Clock()
    metrics = Metrics("0", Refusals(), Bulkhead(Clock()), clock)
    metrics.for_leader(lambda: True).attach(live(Snapshot, clock))
    return metrics.registry


def agents(directory: Path) -> CollectorRegistry:
    clock, outbox = Clock(), NoticeOutbox(1)
    uplink = SupervisorUplink(
        endpoint=SupervisorEndpoint(Address("127.0.0.1", 1), directory / "token", None),
        node=ThisNode("n1", ""),
        outbox=outbox,
        clock=clock,
        heartbeat=1.0,
        version="0",
        bulkhead=(bulkhead := Bulkhead(clock)),
    )
    metrics = AgentMetrics("0", clock, bulkhead)
    metrics.observe(outbox, uplink)
    return metrics.registry


def keepers() -> CollectorRegistry:
    metrics = KeeperMetrics("0", Bulkhead(Clock()))
    metrics.observe(Ledger(Bounds(host=0, tenant=0)), 0)
    return metrics.registry


def served(registry: CollectorRegistry) -> Iterator[tuple[str, str, str]]:
    # Nothing public says which labels a family has that has no samples.
    for collector in registry._collector_to_names:
        for family in collector.collect():
            names = getattr(family, "_labelnames", ()) or getattr(collector, "_labelnames", ())
            labels = ["version"] if family.type == "info" else names
            yield _name(family), family.type, ", ".join(f"`{label}`" for label in labels)


def _name(family: Metric) -> str:
    return family.name + _SUFFIXES.get(family.type, "")


def test_the_page_and_the_registries_agree(tmp_path: Path) -> None:
    written = [(row["name"], row["kind"], row["labels"].strip()) for row in _ROW.finditer(PAGE.read_text("utf-8"))]
    assert sorted(written) == sorted([*served(supervisors()), *served(agents(tmp_path)), *served(keepers())])
    assert len(written) == len({name for name, _, _ in written})
