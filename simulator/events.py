"""The append-only event log of a simulation: what truly happened, from the processes that did it.

Every process appends JSON lines to a file of its own in one directory (environment variable ``SIM_EVENTS``); the judge
reads them all, ordered by time. All processes run on one machine, so wall-clock seconds compare.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self, TypeVar

DIRECTORY_VARIABLE = "SIM_EVENTS"

_T = TypeVar("_T")


class Kind(StrEnum):
    """What an event says; the fields it carries stand beside it."""

    # The cloud: the ground truth.
    NODE_ADDED = "node.added"  # node
    NOTICE_SHOWN = "notice.shown"  # node, group, lead, deadline, synthetic
    NOTICE_WITHDRAWN = "notice.withdrawn"  # node
    NODE_GONE = "node.gone"  # node, announced
    SCENARIO_ENDED = "scenario.ended"
    EXCLUSIONS_CHANGED = "exclusions.changed"  # hosts: the whole list that the discovery script reads
    # The launcher.
    RING_FORMED = "ring.formed"  # run, epoch, hosts in rank order
    RING_BROKEN = "ring.broken"  # run, epoch, host
    HOST_BLACKLISTED = "host.blacklisted"  # run, host
    RUN_ENDED = "run.ended"  # run, code: the launcher ends and none of its workers is left
    # The workers.
    STEP_APPLIED = "step.applied"  # run, epoch, step, rank, host, digest
    CHECKPOINT_SAVED = "checkpoint.saved"  # run, step, rank, host
    CHECKPOINT_LOADED = "checkpoint.loaded"  # run, step
    NOTICE_SEEN = "notice.seen"  # run, host, rank, notice, subject
    FLAG_SEEN = "flag.seen"  # run, host, rank, directive, step
    JOB_FINISHED = "job.finished"  # run, step, digest


class DamagedLogError(ValueError):
    """A log holds something that no writer of ours wrote: do not judge by it."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a log. The typed readers raise DamagedLogError where a field is missing or of another type."""

    t: float
    """Unix seconds, by the writer's clock."""
    kind: Kind
    fields: Mapping[str, Any]

    def text(self, field: str) -> str:
        """A string field."""
        return self._typed(field, str)

    def integer(self, field: str) -> int:
        """A whole-number field."""
        return self._typed(field, int)

    def texts(self, field: str) -> tuple[str, ...]:
        """A field that is a list of strings."""
        return tuple(str(item) for item in self._typed(field, list))

    def _typed(self, field: str, expected: type[_T]) -> _T:
        value = self.fields.get(field)
        if not isinstance(value, expected):
            raise DamagedLogError(f"{self.kind}: field {field!r} is {value!r}, not {expected.__name__}")
        return value


class EventLog:
    """One process's own file in the directory of events; writes nothing when there is no directory.

    A line is one ``write`` on a file opened for appending: the kernel has it when the call returns, so kill -9 loses
    nothing that was said, and several threads may write.
    """

    def __init__(self, directory: Path | None, name: str) -> None:
        """Open ``<name>-<pid>.jsonl``; the name is for people, the pid keeps each process to a file of its own."""
        self._descriptor: int | None = None
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            path = directory / f"{name}-{os.getpid()}.jsonl"
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    @classmethod
    def from_environment(cls, name: str) -> Self:
        """Log where ``SIM_EVENTS`` says, or nowhere."""
        directory = os.environ.get(DIRECTORY_VARIABLE)
        return cls(Path(directory) if directory else None, name)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event, stamped with the present time."""
        if self._descriptor is not None:
            line = json.dumps({"t": time.time(), "event": Kind(event), **fields}) + "\n"
            os.write(self._descriptor, line.encode())

    def close(self) -> None:
        """Close the file; later writes go nowhere."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(directory: Path) -> list[Event]:
    """All events of a directory, ordered by time; of equal times, in the order of their files' names.

    A last line without its end is left out (its writer was killed in the middle of it). Raises DamagedLogError for any
    other line that is no event.
    """
    events = [event for path in sorted(directory.glob("*.jsonl")) for event in _events_of(path)]
    return sorted(events, key=lambda event: event.t)


def _events_of(path: Path) -> Iterator[Event]:
    *lines, _torn = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        yield _parse(line, f"{path.name}:{number}")


def _parse(line: bytes, where: str) -> Event:
    try:
        fields = json.loads(line)
        return Event(t=float(fields.pop("t")), kind=Kind(fields.pop("event")), fields=fields)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DamagedLogError(f"{where}: {line[:80]!r} is no event") from error
