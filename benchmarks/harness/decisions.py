"""When a supervisor's decisions were durable, from its own log: the line is written right after the commit."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec


class _Line(msgspec.Struct, frozen=True):
    """The fields of a log line that are used here."""

    event: str
    timestamp: datetime
    job: str = ""
    phase: str = ""
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Decision:
    """One durable decision; `at` is CLOCK_MONOTONIC, as all instants here."""

    at: float
    job: str
    phase: str
    generation: int


def decisions(log: Path) -> list[Decision]:
    """All decisions of a log in JSON, in order."""
    offset = time.time() - time.monotonic()
    return [
        Decision(line.timestamp.timestamp() - offset, line.job, line.phase, line.generation)
        for line in _lines(log)
        if line.event == "job.decided"
    ]


def _lines(log: Path) -> Iterator[_Line]:
    decoder = msgspec.json.Decoder(_Line)
    for text in log.read_bytes().splitlines():
        try:
            yield decoder.decode(text)
        except msgspec.MsgspecError:
            continue  # A traceback or a warning of the interpreter is no event.
