"""What decisions cost, and how that grows with the jobs, hosts and notices that they are about."""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchmarks.deciding import granting, planning
from benchmarks.results import Figure, ResultTarget, Row, ScenarioOutcome, Unit

METHOD = """\
Only the pure functions of `supervisor/decide`, in this process, without a store or a stream. *One job* plans a running
job, half of whose hosts are noticed, as if all notices had come since the last decision. *Small jobs* grants free hosts
to running and waiting jobs of eight workers, half of them each, of which a few have a noticed host, and plans each of
them once. Each figure is the median of several turns, in which both sizes take turns. A cost that is proportional to
the size has the ratio 2."""

_TURNS = 15
_SHORT_TURNS = 3
_MOST = 2.2
_WHY = """something in it is worse than proportional."""


async def run(root: Path, *, short: bool) -> ScenarioOutcome:  # noqa: ARG001 - every scenario has a directory
    """Measure each case at its size and at half of it."""
    turns = _SHORT_TURNS if short else _TURNS
    workers, jobs = (400, 50) if short else (4000, 500)
    rows = (
        _row(f"one job of {workers:,} workers, {workers // 2:,} noticed", planning, workers, turns),
        _row(f"{jobs:,} small jobs, {jobs * 5:,} notices", granting, jobs, turns),
    )
    return ScenarioOutcome(scenario="deciding", title="Decisions", method=METHOD, rows=rows)


def _row(case: str, make: Callable[[int], Callable[[], object]], size: int, turns: int) -> Row:
    whole, half = make(size), make(size // 2)
    seconds = [(_timed(half), _timed(whole)) for _ in range(turns)]
    ratio = median(after / before for before, after in seconds)
    return Row(
        case=case,
        figures=(
            Figure(label="half", value=median(before for before, _ in seconds), unit=Unit.SECONDS),
            Figure(label="whole", value=median(after for _, after in seconds), unit=Unit.SECONDS),
            Figure(label="whole ÷ half", value=ratio, unit=Unit.RATIO, target=ResultTarget(at_most=_MOST, why=_WHY)),
        ),
    )


def _timed(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
