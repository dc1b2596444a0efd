"""The capacity of the scenario: the recorded trace, and synthetic ones whose nodes are reclaimed at a fixed rate."""

from collections.abc import Iterator

from simulator.cloud.schedule import SchedulePace, plan
from simulator.cloud.synthetic import Rates, fixed_rate
from simulator.cloud.trace import DEFAULT_TRACE, TraceCut, cut, load
from supervisor.goodput.model import GoodputCase

LEADS = (30.0, 120.0)
RECORDED_LEAST, RECORDED_MOST = 10, 24
"""As in `make replay`: the recording has at most 24 nodes and drops below ten four times."""
HOURS = 10.0
"""How long synthetic traces last; the recorded one lasts 10.8 hours."""
SIZES = (16, 100, 500)
NODE_HOURS = (24.0, 4.0)
LEAST_SHARE = 13 / 16
"""As in `make replay`, where a job needs 13 of 16 nodes."""


def cases(seed: int, *, short: bool) -> Iterator[GoodputCase]:
    """The recorded trace with each lead, then each size with each mean time until a node is reclaimed."""
    records = load(DEFAULT_TRACE)
    whole = cut(records, 0.0, max(record.at for record in records))
    for lead in LEADS:
        yield _case(f"recorded, lead {lead:g} s", whole, RECORDED_LEAST, RECORDED_MOST, lead)
    for nodes in SIZES[:1] if short else SIZES:
        for node_hours in NODE_HOURS:
            yield synthetic(nodes, node_hours, seed)


def synthetic(nodes: int, node_hours: float, seed: int, lead: float = LEADS[-1]) -> GoodputCase:
    """A job that has `nodes` nodes, each of which is reclaimed after so many hours on average, and later replaced."""
    rates = Rates(nodes=nodes, node_hours=node_hours)
    size = sum(rates.sizes) / len(rates.sizes)
    groups = max(1, round(HOURS * nodes / node_hours / size))
    name = f"{nodes} nodes, reclaimed after {node_hours:g} h"
    found = fixed_rate(Rates(nodes=nodes, node_hours=node_hours, groups=groups), seed)
    return _case(name, found, int(nodes * LEAST_SHARE), nodes, lead)


def _case(name: str, found: TraceCut, least: int, most: int, lead: float) -> GoodputCase:
    # Nothing is withdrawn, and the seed only scatters the notices of a group over 0.2 s.
    schedule = plan(found, SchedulePace(speed=1.0, lead=lead, seed=1, withdrawal=False))
    return GoodputCase(name=name, schedule=schedule, least=least, most=most)
