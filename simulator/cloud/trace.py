"""Recorded capacity: which nodes came and went when.

A trace is a CSV file without a header: milliseconds since the recording began, `add` or `remove`, the node's name.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from pathlib import Path
from typing import NewType

Node = NewType("Node", str)

DEFAULT_TRACE = Path(__file__).resolve().parent.parent / "traces" / "g4dn-trace.csv"
FIELDS = 3
MILLISECONDS = 1000


class TraceError(ValueError):
    """The trace or the wanted cut of it is wrong; the message says where."""


class Change(StrEnum):
    """What happened to a node."""

    ADD = "add"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a trace; `at` in seconds since the recording began."""

    at: float
    change: Change
    node: Node


@dataclass(frozen=True, slots=True)
class Moment:
    """Everything that changed at one instant; the removals of one moment are one group."""

    at: float
    added: tuple[Node, ...]
    removed: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A piece of a trace, its own time starting at 0 s.

    Attributes:
        present: The nodes that are there at time 0.
        moments: What changes afterwards, in order.
        seconds: Length of the piece.
    """

    present: tuple[Node, ...]
    moments: tuple[Moment, ...]
    seconds: float


def load(path: Path) -> list[Record]:
    """Read a trace file.

    Raises:
        TraceError: The file cannot be read or a line of it is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot read the trace {path}: {error}") from error
    return parse(text.splitlines())


def parse(lines: Iterable[str]) -> list[Record]:
    """Parse the lines of a trace, checking that time never goes back and that nodes come before they go.

    Raises:
        TraceError: Names the first wrong line by its number.
    """
    records: list[Record] = []
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


def _record(line: str) -> Record:
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != FIELDS:
        raise TraceError(f"expected `milliseconds,add|remove,node`, got {line.strip()!r}")
    milliseconds, change, node = fields
    if not milliseconds.isdecimal():
        raise TraceError(f"milliseconds are a whole number, not {milliseconds!r}")
    if change not in (Change.ADD, Change.REMOVE):
        raise TraceError(f"a node is `add`ed or `remove`d, not {change!r}")
    if not node or "/" in node:
        raise TraceError(f"{node!r} is no name for a node")
    return Record(int(milliseconds) / MILLISECONDS, Change(change), Node(node))


def _follow(alive: set[Node], previous: Record | None, record: Record) -> None:
    if previous is not None and record.at < previous.at:
        raise TraceError("time goes back")
    if record.change is Change.ADD:
        if record.node in alive:
            raise TraceError(f"{record.node} is added although it is there")
        alive.add(record.node)
        return
    if record.node not in alive:
        raise TraceError(f"{record.node} is removed although it is not there")
    alive.remove(record.node)


def cut(records: Sequence[Record], start_s: float, end_s: float) -> Cut:
    """Take the piece after `start_s` up to and including `end_s`; what was there at `start_s` is there at time 0.

    Raises:
        TraceError: The piece has no length, or no node is there in it at all.
    """
    if not 0 <= start_s < end_s:
        raise TraceError(f"a cut from {start_s:g} s to {end_s:g} s has no length")
    present: dict[Node, None] = {}
    for record in records:
        if record.at <= start_s:
            _apply(present, record)
    inside = [record for record in records if start_s < record.at <= end_s]
    moments = tuple(_moment(at - start_s, list(group)) for at, group in groupby(inside, key=lambda r: r.at))
    if not present and not moments:
        raise TraceError(f"the trace has no node between {start_s:g} s and {end_s:g} s")
    return Cut(tuple(present), moments, end_s - start_s)


def _apply(present: dict[Node, None], record: Record) -> None:
    if record.change is Change.ADD:
        present[record.node] = None
    else:
        del present[record.node]


def _moment(at: float, records: Sequence[Record]) -> Moment:
    return Moment(
        at,
        tuple(record.node for record in records if record.change is Change.ADD),
        tuple(record.node for record in records if record.change is Change.REMOVE),
    )
