"""The outcomes of replayed scenarios, as a table for people and as JSON."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from rich.table import Table
from rich.text import Text

from simulator.guarantees import GuaranteeCosts
from simulator.verdict import ReplayVerdict

POLL_SECONDS = 0.05
# With a larger delay the machine has missed a poll, a window or a deadline of the simulation itself.
BUSY_SECONDS = 0.5


@dataclass(slots=True)
class SchedulingDelay:
    """The longest delay of this process's timers in seconds, caused by the machine."""

    longest: float = 0.0


@asynccontextmanager
async def measure_delay() -> AsyncIterator[SchedulingDelay]:
    """Measure the scheduling delay while the block runs."""
    found = SchedulingDelay()
    watching = asyncio.create_task(_watch(found), name="strain")
    try:
        yield found
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def _watch(found: SchedulingDelay) -> NoReturn:
    while True:
        due = time.monotonic() + POLL_SECONDS
        await asyncio.sleep(POLL_SECONDS)
        found.longest = max(found.longest, time.monotonic() - due)


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """The outcome of one scenario. `verdict` is None if it could not start or left processes behind.

    Attributes:
        name: The scenario's name.
        verdict: The judge's verdict.
        shortcomings: Everything that is wrong, in words. Empty means success.
        costs: Duration of a step and of a checkpoint, in seconds.
        shortest_lead: Shortest lead on the clock, in seconds.
        late: Longest scheduling delay, in seconds.
        seconds: Duration of the scenario.
        crashes: The errors of our own code that nobody foresaw, by the logs of its processes.
    """

    name: str
    verdict: ReplayVerdict | None
    shortcomings: tuple[str, ...]
    costs: GuaranteeCosts
    shortest_lead: float
    late: float
    seconds: float
    crashes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.shortcomings

    @property
    def overloaded(self) -> bool:
        """Whether the machine was so slow that a failure may be its fault."""
        return self.late > BUSY_SECONDS

    @property
    def blames_machine(self) -> bool:
        """Whether the scenario failed, possibly because of the machine."""
        return not self.ok and self.overloaded


def shortcomings(verdict: ReplayVerdict, costs: GuaranteeCosts, shortest_lead: float) -> Iterator[str]:
    """Yield the judge's findings, and a lead that was too short for the guarantees."""
    yield from (f"{finding.failure}: {finding.detail}" for finding in verdict.failures)
    if shortest_lead < costs.minimum_lead:
        yield f"the lead of {shortest_lead:.1f} s was below step + checkpoint + 2 s = {costs.minimum_lead:.1f} s"


def table(outcomes: Sequence[ReplayOutcome]) -> Table:
    result = Table(title="Replay, judged by the simulated cloud's truth", title_justify="left")
    for column in (
        "scenario",
        "notices",
        "groups",
        "shrinks",
        "stops",
        "resumes",
        "steps",
        "lost",
        "false stops",
        "unmet",
    ):
        result.add_column(column, justify="left" if column == "scenario" else "right")
    for column in ("changes a group", "parameters", "late", "took", "verdict"):
        result.add_column(column, justify="right")
    for outcome in outcomes:
        result.add_row(outcome.name, *_cells(outcome.verdict), f"{outcome.late:.2f} s", *_end(outcome))
    return result


def _cells(verdict: ReplayVerdict | None) -> tuple[str, ...]:
    if verdict is None:
        return ("-",) * 11
    figures = verdict.figures
    changes = figures.changes_per_group
    return (
        str(figures.notices),
        str(len(figures.groups)),
        str(len(changes)),
        str(figures.suspensions),
        str(figures.resumes),
        str(figures.steps_applied),
        str(figures.steps_lost),
        str(figures.false_stops),
        str(figures.unmet),
        "/".join(sorted({str(change) for change in changes})) or "-",
        "equal" if figures.parameters_equal else "DIFFER",
    )


def _end(outcome: ReplayOutcome) -> tuple[str, Text]:
    word = Text("passed", style="bold green") if outcome.ok else Text("FAILED", style="bold red")
    return f"{outcome.seconds:.0f} s", word


def lines(outcome: ReplayOutcome) -> Iterator[str]:
    """Describe what is wrong with a scenario."""
    for shortcoming in outcome.shortcomings:
        yield f"{outcome.name}: {shortcoming}"
    if outcome.blames_machine:
        yield f"{outcome.name}: the machine was overloaded, up to {outcome.late:.1f} s late; repeat it on an idle one"


def write_json(path: Path, outcomes: Sequence[ReplayOutcome]) -> None:
    plain = {"ok": all(one.ok for one in outcomes), "scenarios": [_plain(one) for one in outcomes]}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(plain), indent=2) + b"\n")


def _plain(outcome: ReplayOutcome) -> dict[str, Any]:
    return {**msgspec.to_builtins(outcome), "ok": outcome.ok, "overloaded": outcome.overloaded}
