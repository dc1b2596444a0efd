"""The cost of open status pages: a storm of notices with and without them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness.fleet import FleetSize
from benchmarks.results import Figure, Row, ScenarioOutcome, Unit
from benchmarks.scenarios.fanout import FanoutLoad, measure

METHOD = """\
The storm of *Notice → flag*, first without viewers, then with viewers who have the page open and read everything that
is pushed. Ratios are to the row without viewers; both were measured in one run, one after the other."""

_VIEWERS = 100
_COMPARED = ("fan-out p50", "fan-out p99", "to rank 0 p99", "server CPU")


async def run(root: Path, *, short: bool) -> ScenarioOutcome:
    size = FleetSize(nodes=4, streams=8, jobs=2) if short else FleetSize(nodes=200, streams=2000, jobs=10)
    looking = (0, 3) if short else (0, _VIEWERS)
    rows = [await measure(root / str(count), _load(size, count)) for count in looking]
    title = f"The status page, {size.nodes} agents, {size.streams:,} streams"
    return ScenarioOutcome(scenario="page", title=title, method=METHOD, rows=_compared(rows))


def _load(size: FleetSize, viewers: int) -> FanoutLoad:
    case = f"{viewers} look" if viewers else "nobody looks"
    return FanoutLoad(case=case, size=size, notices=size.nodes // 2, storm=True, tls=True, viewers=viewers)


def _compared(rows: Sequence[Row]) -> tuple[Row, ...]:
    alone = _values(rows[0])
    return (rows[0], *(Row(case=row.case, figures=(*row.figures, *_ratios(_values(row), alone))) for row in rows[1:]))


def _values(row: Row) -> Mapping[str, float]:
    return {figure.label: figure.value for figure in row.figures}


def _ratios(values: Mapping[str, float], alone: Mapping[str, float]) -> list[Figure]:
    return [
        Figure(label=f"{label} ratio", value=values[label] / alone[label], unit=Unit.RATIO)
        for label in _COMPARED
        if alone.get(label)
    ]
