"""The cost of the record, and of a comparison for the status page: storms of notices without and with them, in turn."""

import asyncio
import statistics
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from benchmarks.harness.fleet import FleetSize
from benchmarks.results import Figure, Row, ScenarioOutcome, Unit
from benchmarks.scenarios import fanout
from benchmarks.scenarios.fanout import FanoutLoad
from supervisor.domain.ids import Host
from supervisor.domain.stays import HostStay, MeasuredCosts, WantedSpan
from supervisor.goodput.comparison import RecordedJob, RecordedJobs
from supervisor.observability.page.comparisons import EncodedJobs, simulate_apart

_ROUNDS = 5
_UNRECORDED = (sys.executable, "-m", "benchmarks.clients.unrecorded")
_LABELS = ("server CPU", "to rank 0 p50", "to rank 0 p99", "fan-out p50", "fan-out p99")
_HOUR, _HOURS, _HOSTS = 3600.0, 240, 60

METHOD = """\
The storm of ten jobs from above, in turn by a supervisor that keeps no record, by one that keeps it in its SQLite file,
and by one that keeps it while a process of the lowest priority simulates other policies for ten days of a job of 60
hosts, again and again, as the status page has it do once on request. A figure is the median of five; a ratio is of the
medians."""


async def run(root: Path, *, short: bool) -> ScenarioOutcome:
    without: list[Row] = []
    recorded: list[Row] = []
    compared: list[Row] = []
    for turn in range(1 if short else _ROUNDS):
        load = _load(short=short)
        without.append(await fanout.measure(root / f"without-{turn}", replace(load, command=_UNRECORDED)))
        recorded.append(await fanout.measure(root / f"record-{turn}", load))
        async with _comparing():
            compared.append(await fanout.measure(root / f"compared-{turn}", load))
    rows = tuple(_row(label, without, recorded, compared) for label in _LABELS)
    title = "What the record costs, and a comparison"
    return ScenarioOutcome(scenario="recording", title=title, method=METHOD, rows=rows)


def _load(*, short: bool) -> FanoutLoad:
    size = FleetSize(nodes=20, streams=200, jobs=5) if short else FleetSize(nodes=200, streams=2000, jobs=10)
    return FanoutLoad(case="storm", size=size, notices=10 if short else 100, storm=True, tls=False)


@asynccontextmanager
async def _comparing() -> AsyncIterator[None]:
    """Simulates one comparison after the other while the block runs."""
    task = asyncio.create_task(_compare(EncodedJobs(msgspec.json.encode(RecordedJobs(jobs=[recorded_job()])))))
    try:
        yield
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _compare(given: EncodedJobs) -> None:
    while True:
        await simulate_apart(given)


def recorded_job() -> RecordedJob:
    """A job of which one host in turn is reclaimed each half hour, and is back after ten minutes."""
    costs = MeasuredCosts(step_seconds=2.0, checkpoint_seconds=20.0, start_seconds=60.0)
    spans = [
        WantedSpan(begins=at, ends=at + _HOUR, least=_HOSTS // 2, most=_HOSTS, in_process=False, costs=costs)
        for at in (number * _HOUR for number in range(_HOURS))
    ]
    seconds = _HOURS * _HOUR
    since, stays = [0.0] * _HOSTS, list[HostStay]()
    for number in range(1, 2 * _HOURS):
        turn, gone = number % _HOSTS, number * _HOUR / 2
        stays.append(
            HostStay(
                host=Host(f"n{turn}"), begins=since[turn], ends=gone, gone=True, noticed=gone - 120.0, deadline=gone
            )
        )
        since[turn] = gone + 600.0
    stays += [HostStay(host=Host(f"n{turn}"), begins=begins, ends=seconds) for turn, begins in enumerate(since)]
    wanted = _HOSTS * seconds
    return RecordedJob(since=0.0, until=seconds, spans=spans, stays=stays, wanted=wanted, trained=wanted)


def _row(label: str, without: Sequence[Row], recorded: Sequence[Row], compared: Sequence[Row]) -> Row:
    off, on, beside = (statistics.median(_values(rows, label)) for rows in (without, recorded, compared))
    unit = next(figure.unit for figure in without[0].figures if figure.label == label)
    return Row(
        case=label,
        figures=(
            Figure(label="no record", value=off, unit=unit),
            Figure(label="record", value=on, unit=unit),
            Figure(label="and a comparison", value=beside, unit=unit),
            Figure(label="record ÷ no record", value=on / off, unit=Unit.RATIO),
            Figure(label="comparison ÷ record", value=beside / on, unit=Unit.RATIO),
        ),
    )


def _values(rows: Sequence[Row], label: str) -> Iterator[float]:
    return (figure.value for row in rows for figure in row.figures if figure.label == label)
