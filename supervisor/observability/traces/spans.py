"""Defines the spans of traces, without the library that exports them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

Attribute = str | bool | int | float | Sequence[str]
"""The value of an attribute. A text may quote anybody; who exports it makes it a bounded line."""


class TraceIds(NamedTuple):
    """The id of a trace, and that of its root span."""

    trace: int
    root: int

    def __str__(self) -> str:
        """The trace's id as tools write it."""
        return f"{self.trace:032x}"


def trace_ids(*identity: object) -> TraceIds:
    """Derives ids from what identifies a trace, so that every supervisor gives it the same ones."""
    digest = hashlib.sha256("\0".join(str(part) for part in identity).encode()).digest()
    return TraceIds(int.from_bytes(digest[:16]) or 1, int.from_bytes(digest[16:24]) or 1)


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Something that happened at an instant (Unix seconds) within a span."""

    name: str
    at: float
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSpan:
    """A span that has ended.

    Attributes:
        name: What happened; one of a few.
        trace: The trace that it belongs to.
        root: Whether it is the root of the trace. All others are the root's children.
        begins: Unix seconds.
        ends: Likewise.
        attributes: For searches.
        error: Why it counts as failed; empty if it does not.
        events: What happened within it.
        links: Other traces.
    """

    name: str
    trace: TraceIds
    root: bool = False
    begins: float
    ends: float
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    error: str = ""
    events: Sequence[SpanEvent] = ()
    links: Sequence[TraceIds] = ()


class SpanExport(Protocol):
    """Takes spans to a collector."""

    def outcomes(self) -> Mapping[str, int]:
        """Returns the number of spans so far, by what became of them."""

    def put(self, span: TraceSpan) -> None:
        """Takes a span; must not block."""
