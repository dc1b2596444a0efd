"""The cost of metrics: a storm of notices without and with scraped metrics, in turn."""

import asyncio
import socket
import statistics
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp

from benchmarks.harness.fleet import FleetSize
from benchmarks.results import Figure, Row, ScenarioOutcome, Unit
from benchmarks.scenarios import fanout
from benchmarks.scenarios.fanout import FanoutLoad

_READ_SECONDS = 1.0
"""Fifteen times as often as Prometheus does by default."""

_LABELS = ("to rank 0 p50", "to rank 0 p99", "fan-out p50", "fan-out p99", "server CPU", "server RSS")

METHOD = """\
The storm of ten jobs from above, three times without metrics and three times with them, in turn, so that a slow
moment of the machine affects both. With metrics, `/metrics` is read every second, with exemplars. A figure is the
median of three."""


async def run(root: Path, *, short: bool) -> ScenarioOutcome:
    without: list[Row] = []
    measured: list[Row] = []
    for turn in range(1 if short else 3):
        without.append(await fanout.measure(root / f"without-{turn}", _load(short=short)))
        measured.append(await measure(root / f"with-{turn}", _load(short=short)))
    rows = tuple(compared(label, without, measured) for label in _LABELS)
    return ScenarioOutcome(scenario="measuring", title="What it costs to be measured", method=METHOD, rows=rows)


def _load(*, short: bool) -> FanoutLoad:
    size = FleetSize(nodes=20, streams=200, jobs=5) if short else FleetSize(nodes=200, streams=2000, jobs=10)
    return FanoutLoad(case="storm", size=size, notices=10 if short else 100, storm=True, tls=False)


async def measure(root: Path, load: FanoutLoad) -> Row:
    """Measure one case while its metrics are read."""
    address = f"127.0.0.1:{_free_port()}"
    async with _reading(f"http://{address}/metrics") as answers:
        row = await fanout.measure(root, replace(load, settings={"JOB_SUPERVISOR_METRICS_ADDRESS": address}))
    if not answers:
        raise AssertionError("no metrics were read")
    return row


@asynccontextmanager
async def _reading(url: str) -> AsyncIterator[Sequence[int]]:
    """Read the metrics while the block runs. Yields the sizes of the answers."""
    answers: list[int] = []
    async with aiohttp.ClientSession(headers={"Accept": "application/openmetrics-text; version=1.0.0"}) as session:
        task = asyncio.create_task(_read(session, url, answers))
        try:
            yield answers
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _read(session: aiohttp.ClientSession, url: str, answers: list[int]) -> None:
    while True:
        try:
            async with session.get(url) as answer:
                answers.append(len(await answer.read()))
        except aiohttp.ClientError:
            pass  # It does not serve yet, or any more.
        await asyncio.sleep(_READ_SECONDS)


def compared(label: str, without: Sequence[Row], measured: Sequence[Row]) -> Row:
    """Return the medians of one figure and their ratio."""
    before, after = (statistics.median(_values(rows, label)) for rows in (without, measured))
    unit = next(figure.unit for figure in without[0].figures if figure.label == label)
    return Row(
        case=label,
        figures=(
            Figure(label="without", value=before, unit=unit),
            Figure(label="with", value=after, unit=unit),
            Figure(label="with ÷ without", value=after / before, unit=Unit.RATIO),
        ),
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as port:
        return int(port.getsockname()[1])


def _values(rows: Sequence[Row], label: str) -> Iterator[float]:
    return (figure.value for row in rows for figure in row.figures if figure.label == label)
