"""When a supervisor's decisions were durable, from its log, which it writes right after the commit."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec


class _DecisionLine(msgspec.Struct, frozen=True):
    """The used fields of a log line."""

    event: str
    timestamp: datetime
    job: str = ""
    phase: str = ""
    generation: int = 0


@dataclass(frozen=True, slots=True)
class LoggedDecision:
    """A durable decision. `at` is CLOCK_MONOTONIC."""

    at: float
    job: str
    phase: str
    generation: int


def decisions(log: Path) -> list[LoggedDecision]:
    """Return all decisions of a JSON log, in order."""
    offset = time.time() - time.monotonic()
    return [
        LoggedDecision(line.timestamp.timestamp() - offset, line.job, line.phase, line.generation)
        for line in _lines(log)
        if line.event == "job.decided"
    ]


def _lines(log: Path) -> Iterator[_DecisionLine]:
    decoder = msgspec.json.Decoder(_DecisionLine)
    for text in log.read_bytes().splitlines():
        try:
            yield decoder.decode(text)
        except msgspec.MsgspecError:
            continue  # A traceback or a warning is not an event.
