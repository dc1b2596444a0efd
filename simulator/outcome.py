"""What became of the acts of a replay: for people a table, for machines JSON."""

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

from simulator.guarantees import Costs
from simulator.verdict import Verdict

POLL_SECONDS = 0.05
# Later than this, a poll, a window or a deadline of the simulation itself has been missed by the machine.
BUSY_SECONDS = 0.5


@dataclass(slots=True)
class SchedulingDelay:
    """How late this process was at most when it wanted to look at the clock, in seconds: the machine's doing."""

    longest: float = 0.0


@asynccontextmanager
async def measure_delay() -> AsyncIterator[SchedulingDelay]:
    """Watch how late everything is while the block runs."""
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
class Outcome:
    """One act: `verdict` is None where it did not begin, or left processes behind.

    Attributes:
        name: Which act.
        verdict: The judge's.
        shortcomings: Everything that is wrong, in words; none is a success.
        costs: What a step and a checkpoint took, in seconds.
        shortest_lead: From a notice to the end of its node, on the clock, in seconds.
        late: How late the machine was at most, in seconds.
        seconds: How long the act took.
    """

    name: str
    verdict: Verdict | None
    shortcomings: tuple[str, ...]
    costs: Costs
    shortest_lead: float
    late: float
    seconds: float

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.shortcomings

    @property
    def overloaded(self) -> bool:
        """The machine was so late that what is wrong may be its fault."""
        return self.late > BUSY_SECONDS

    @property
    def blames_machine(self) -> bool:
        """Something is wrong, and may be the machine's fault."""
        return not self.ok and self.overloaded


def shortcomings(verdict: Verdict, costs: Costs, shortest_lead: float) -> Iterator[str]:
    """Say what is wrong with an act: the judge's findings, and a lead that was too short for the promise."""
    yield from (f"{finding.failure}: {finding.detail}" for finding in verdict.failures)
    if shortest_lead < costs.minimum_lead:
        yield f"the lead of {shortest_lead:.1f} s was below step + checkpoint + 2 s = {costs.minimum_lead:.1f} s"


def table(outcomes: Sequence[Outcome]) -> Table:
    """All acts, one a row."""
    result = Table(title="Replay, judged by the cloud's own truth", title_justify="left")
    for column in ("act", "notices", "groups", "shrinks", "stops", "resumes", "steps", "lost", "false stops", "unmet"):
        result.add_column(column, justify="left" if column == "act" else "right")
    for column in ("changes a group", "parameters", "late", "took", "verdict"):
        result.add_column(column, justify="right")
    for outcome in outcomes:
        result.add_row(outcome.name, *_cells(outcome.verdict), f"{outcome.late:.2f} s", *_end(outcome))
    return result


def _cells(verdict: Verdict | None) -> tuple[str, ...]:
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


def _end(outcome: Outcome) -> tuple[str, Text]:
    word = Text("passed", style="bold green") if outcome.ok else Text("FAILED", style="bold red")
    return f"{outcome.seconds:.0f} s", word


def lines(outcome: Outcome) -> Iterator[str]:
    """What is wrong with an act, in words."""
    for shortcoming in outcome.shortcomings:
        yield f"{outcome.name}: {shortcoming}"
    if outcome.blames_machine:
        yield f"{outcome.name}: the machine was overloaded, up to {outcome.late:.1f} s late: repeat it on an idle one"


def write_json(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write all outcomes with all figures."""
    plain = {"ok": all(one.ok for one in outcomes), "scenarios": [_plain(one) for one in outcomes]}
    path.write_bytes(msgspec.json.format(msgspec.json.encode(plain), indent=2) + b"\n")


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {**msgspec.to_builtins(outcome), "ok": outcome.ok, "overloaded": outcome.overloaded}
