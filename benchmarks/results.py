"""The results of a run, which are stored as JSON.

A row is one case of a scenario. Its figures are numbers with a unit; a target is an upper bound for a figure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import msgspec

from benchmarks.summary import Summary

SCHEMA = 1


class UnreadableResultsError(Exception):
    """The file does not contain results of this schema. The message says why."""


class Unit(StrEnum):
    """The unit of a figure, which determines its format."""

    SECONDS = "s"
    NANOSECONDS = "ns"
    BYTES = "bytes"
    CORES = "cores"
    COUNT = "count"
    RATIO = "ratio"
    SHARE = "share"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultTarget:
    """The upper bound of a figure. `why` explains a miss."""

    at_most: float
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number in its base unit: seconds, not milliseconds."""

    label: str
    value: float
    unit: Unit
    target: ResultTarget | None = None

    @property
    def met(self) -> bool | None:
        """Whether it meets its target; None without one."""
        return None if self.target is None else self.value <= self.target.at_most


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case of a scenario."""

    case: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioOutcome:
    """The results of a scenario. `method` says which parts are real and which only speak the protocol."""

    scenario: str
    title: str
    method: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultMachine:
    cores: int
    cpu: str
    memory_bytes: int
    python: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    machine: ResultMachine
    short: bool
    outcomes: tuple[ScenarioOutcome, ...]
    schema: int = SCHEMA


def figures(
    label: str, summary: Summary, unit: Unit = Unit.SECONDS, p99: ResultTarget | None = None
) -> Sequence[Figure]:
    """Return a distribution as figures."""
    return (
        Figure(label=f"{label} p50", value=summary.p50, unit=unit),
        Figure(label=f"{label} p99", value=summary.p99, unit=unit, target=p99),
        Figure(label=f"{label} max", value=summary.maximum, unit=unit),
    )


def updated(before: Results, again: Results, order: Sequence[str]) -> Results:
    """Return results with those scenarios of a later run in the place of earlier ones.

    Args:
        before: The results of a full run.
        again: Results of some scenarios.
        order: The names of all scenarios. Each table of a scenario is named by it, alone or followed by another word.
    """

    def name(outcome: ScenarioOutcome) -> str:
        return outcome.scenario.partition(" ")[0]

    measured = {name(outcome) for outcome in again.outcomes}
    kept = (outcome for outcome in before.outcomes if name(outcome) not in measured)
    outcomes = sorted((*kept, *again.outcomes), key=lambda outcome: order.index(name(outcome)))
    return replace(before, outcomes=tuple(outcomes))


def write(path: Path, results: Results) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def read(path: Path) -> Results:
    """Read a file that `write` wrote.

    Raises:
        UnreadableResultsError: It is missing or invalid.
    """
    try:
        results = msgspec.json.decode(path.read_bytes(), type=Results)
    except (OSError, msgspec.MsgspecError) as error:
        raise UnreadableResultsError(f"cannot read {path.name}: {error}") from error
    if results.schema != SCHEMA:
        raise UnreadableResultsError(f"{path.name} has schema {results.schema}, expected {SCHEMA}")
    return results
