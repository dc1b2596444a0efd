"""One scenario of the benchmarks, as small as it can be."""

from dataclasses import replace
from pathlib import Path

from benchmarks.harness.fleet import FleetSize
from benchmarks.results import Unit
from benchmarks.scenarios import metrics, page, webhook
from benchmarks.scenarios.fanout import Load, measure


async def test_a_tiny_storm_is_measured(tmp_path: Path) -> None:
    """Real supervisor, real clients over TLS: every process of the stopped job is told."""
    size = FleetSize(nodes=4, streams=8, jobs=2)
    row = await measure(tmp_path / "run", Load(case="tiny", size=size, notices=2, storm=True, tls=True))
    values = {figure.label: figure.value for figure in row.figures}
    assert 0 < values["fan-out p50"] <= values["fan-out max"] < 10
    assert 0 < values["to rank 0 max"] < 10
    assert values["a stream"] > 0


async def test_a_few_pods_are_shaped(tmp_path: Path) -> None:
    outcome = await webhook.run(tmp_path, short=True)
    values = [{figure.label: figure.value for figure in row.figures} for row in outcome.rows]
    assert all(0 < each["answer p50"] < each["asked by HTTPS p50"] < 10 for each in values)


async def test_a_tiny_storm_is_measured_while_somebody_reads_metrics(tmp_path: Path) -> None:
    size = FleetSize(nodes=4, streams=8, jobs=2)
    row = await metrics.measure(tmp_path / "run", Load(case="tiny", size=size, notices=2, storm=True, tls=False))
    twice = replace(row, figures=tuple(replace(figure, value=2 * figure.value) for figure in row.figures))
    without, measured, ratio = metrics.compared("to rank 0 p50", [row], [twice]).figures
    assert 0 < without.value < 10
    assert (measured.value, ratio.value) == (2 * without.value, 2.0)


async def test_people_who_look_are_measured(tmp_path: Path) -> None:
    """The same storm without and with them; ratios are to the one without."""
    without, with_them = (await page.run(tmp_path, short=True)).rows
    assert (without.case, with_them.case) == ("nobody looks", "3 look")
    ratios = {figure.label: figure.value for figure in with_them.figures if figure.unit is Unit.RATIO}
    assert ratios["fan-out p99 ratio"] > 0
    assert ratios["server CPU ratio"] > 0
