"""What a run measured: values that become JSON and come back.

A row is one case of a scenario. Its figures are numbers with a unit; a target is a bound for one of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from benchmarks.summary import Summary

SCHEMA = 1


class UnreadableResultsError(Exception):
    """The file is not a result of this version's benchmarks; the message says why."""


class Unit(StrEnum):
    """What a figure counts, and so how it is printed."""

    SECONDS = "s"
    NANOSECONDS = "ns"
    BYTES = "bytes"
    CORES = "cores"
    COUNT = "count"
    RATIO = "ratio"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A figure should be at most this; where it is not, `why` says so for people."""

    at_most: float
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number, in the unit itself: seconds, not milliseconds."""

    label: str
    value: float
    unit: Unit
    target: Target | None = None

    @property
    def met(self) -> bool | None:
        """Whether it is within its target; None without one."""
        return None if self.target is None else self.value <= self.target.at_most


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case of a scenario."""

    case: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One scenario: what was done, with what that is real and what that only speaks the protocol."""

    scenario: str
    title: str
    method: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where it ran, in general terms."""

    cores: int
    cpu: str
    memory_bytes: int
    python: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """One run of the benchmarks."""

    machine: Machine
    short: bool
    outcomes: tuple[Outcome, ...]
    schema: int = SCHEMA


def figures(label: str, summary: Summary, unit: Unit = Unit.SECONDS, p99: Target | None = None) -> Sequence[Figure]:
    """A distribution as figures."""
    return (
        Figure(label=f"{label} p50", value=summary.p50, unit=unit),
        Figure(label=f"{label} p99", value=summary.p99, unit=unit, target=p99),
        Figure(label=f"{label} max", value=summary.maximum, unit=unit),
    )


def write(path: Path, results: Results) -> None:
    """Writes the results for people and machines to read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")


def read(path: Path) -> Results:
    """Reads what `write` wrote.

    Raises:
        UnreadableResultsError: It is missing, or something else.
    """
    try:
        results = msgspec.json.decode(path.read_bytes(), type=Results)
    except (OSError, msgspec.MsgspecError) as error:
        raise UnreadableResultsError(f"cannot read {path.name}: {error}") from error
    if results.schema != SCHEMA:
        raise UnreadableResultsError(f"{path.name} has schema {results.schema}, this is {SCHEMA}")
    return results
