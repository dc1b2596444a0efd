"""Recorded capacity: the arrival and removal of nodes.

A trace is a CSV file without a header: milliseconds since the start of the recording, `add` or `remove`, node name.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from pathlib import Path

from supervisor.goodput.schedule import Node

__all__ = [
    "DEFAULT_TRACE",
    "Change",
    "Moment",
    "Node",
    "TraceCut",
    "TraceError",
    "TraceRecord",
    "cut",
    "load",
    "parse",
]

DEFAULT_TRACE = Path(__file__).resolve().parent.parent / "traces" / "g4dn-trace.csv"
FIELDS = 3
MILLISECONDS = 1000


class TraceError(ValueError):
    """The trace or the requested cut is invalid. The message says where."""


class Change(StrEnum):
    ADD = "add"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One line of a trace. `at` is in seconds since the start of the recording."""

    at: float
    change: Change
    node: Node


@dataclass(frozen=True, slots=True)
class Moment:
    """All changes at one instant. Its removals are one group."""

    at: float
    added: tuple[Node, ...]
    removed: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class TraceCut:
    """A piece of a trace with its own time, starting at 0 s.

    Attributes:
        present: The nodes at time 0.
        moments: Later changes, in order.
        seconds: Length of the piece.
    """

    present: tuple[Node, ...]
    moments: tuple[Moment, ...]
    seconds: float


def load(path: Path) -> list[TraceRecord]:
    """Read a trace file.

    Raises:
        TraceError: The file cannot be read or is invalid.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot read the trace {path}: {error}") from error
    return parse(text.splitlines())


def parse(lines: Iterable[str]) -> list[TraceRecord]:
    """Parse the lines of a trace. Time must not go back, and nodes must arrive before they are removed.

    Raises:
        TraceError: Names the first invalid line by its number.
    """
    records: list[TraceRecord] = []
    alive: set[Node] = set()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = _record(line)
            _follow(alive, records[-1] if records else None, record)
        except TraceError as error:
            raise TraceError(f"line {number}: {error}") from None
        records.append(record)
    return records


def _record(line: str) -> TraceRecord:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != FIELDS:
        raise TraceError(f"expected `milliseconds,add|remove,node`, got {line.strip()!r}")
    milliseconds, change, node = fields
    if not milliseconds.isdecimal():
        raise TraceError(f"milliseconds must be a whole number, not {milliseconds!r}")
    if change not in (Change.ADD, Change.REMOVE):
        raise TraceError(f"expected `add` or `remove`, got {change!r}")
    if not node or "/" in node:
        raise TraceError(f"{node!r} is not a valid node name")
    return TraceRecord(int(milliseconds) / MILLISECONDS, Change(change), Node(node))


def _follow(alive: set[Node], previous: TraceRecord | None, record: TraceRecord) -> None:
    if previous is not None and record.at < previous.at:
        raise TraceError("time goes back")
    if record.change is Change.ADD:
        if record.node in alive:
            raise TraceError(f"{record.node} is added although it exists")
        alive.add(record.node)
        return
    if record.node not in alive:
        raise TraceError(f"{record.node} is removed although it does not exist")
    alive.remove(record.node)


def cut(records: Sequence[TraceRecord], start_s: float, end_s: float) -> TraceCut:
    """Return the piece after `start_s` up to and including `end_s`. Nodes that exist at `start_s` exist at time 0.

    Raises:
        TraceError: The piece is empty or has no nodes.
    """
    if not 0 <= start_s < end_s:
        raise TraceError(f"the cut from {start_s:g} s to {end_s:g} s is empty")
    present: dict[Node, None] = {}
    for record in records:
        if record.at <= start_s:
            _apply(present, record)
    inside = [record for record in records if start_s < record.at <= end_s]
    moments = tuple(_moment(at - start_s, list(group)) for at, group in groupby(inside, key=lambda r: r.at))
    if not present and not moments:
        raise TraceError(f"the trace has no node between {start_s:g} s and {end_s:g} s")
    return TraceCut(tuple(present), moments, end_s - start_s)


def _apply(present: dict[Node, None], record: TraceRecord) -> None:
    if record.change is Change.ADD:
        present[record.node] = None
    else:
        del present[record.node]


def _moment(at: float, records: Sequence[TraceRecord]) -> Moment:
    return Moment(
        at,
        tuple(record.node for record in records if record.change is Change.ADD),
        tuple(record.node for record in records if record.change is Change.REMOVE),
    )
