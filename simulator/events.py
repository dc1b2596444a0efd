"""The append-only event log of a simulation: what really happened, written by the processes that did it.

Each process appends JSON lines to a file of its own in one directory (environment variable ``SIM_EVENTS``). The judge
reads all files, ordered by time. All processes run on one machine, so their wall clocks agree.
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


class JobEventKind(StrEnum):
    """The kinds of events. Their fields are listed beside them."""

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
    """A log contains a line that no writer of ours wrote. Do not judge by it."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One line of a log. The typed readers raise DamagedLogError if a field is missing or has another type."""

    t: float
    """Unix seconds, by the writer's clock."""
    kind: JobEventKind
    fields: Mapping[str, Any]

    def text(self, field: str) -> str:
        return self._typed(field, str)

    def integer(self, field: str) -> int:
        return self._typed(field, int)

    def texts(self, field: str) -> tuple[str, ...]:
        return tuple(str(item) for item in self._typed(field, list))

    def _typed(self, field: str, expected: type[_T]) -> _T:
        value = self.fields.get(field)
        if not isinstance(value, expected):
            raise DamagedLogError(f"{self.kind}: field {field!r} is {value!r}, not {expected.__name__}")
        return value


class EventLog:
    """One process's file in the directory of events. Without a directory it writes nothing.

    A line is one ``write`` to a file opened for appending. The kernel has it when the call returns, so kill -9 loses
    nothing, and several threads may write.
    """

    def __init__(self, directory: Path | None, name: str) -> None:
        """Open ``<name>-<pid>.jsonl``. The name is for people, the pid keeps the files apart."""
        self._descriptor: int | None = None
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            path = directory / f"{name}-{os.getpid()}.jsonl"
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    @classmethod
    def from_environment(cls, name: str) -> Self:
        """Log to the directory in ``SIM_EVENTS``, if it is set."""
        directory = os.environ.get(DIRECTORY_VARIABLE)
        return cls(Path(directory) if directory else None, name)

    def write(self, event: str, **fields: Any) -> None:
        if self._descriptor is not None:
            line = json.dumps({"t": time.time(), "event": JobEventKind(event), **fields}) + "\n"
            os.write(self._descriptor, line.encode())

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read(directory: Path) -> list[JobEvent]:
    """Return all events of a directory, ordered by time, then by file name.

    An incomplete last line is skipped, because its writer was killed. Any other invalid line raises DamagedLogError.
    """
    events = [event for path in sorted(directory.glob("*.jsonl")) for event in _events_of(path)]
    return sorted(events, key=lambda event: event.t)


def _events_of(path: Path) -> Iterator[JobEvent]:
    *lines, _torn = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        yield _parse(line, f"{path.name}:{number}")


def _parse(line: bytes, where: str) -> JobEvent:
    try:
        fields = json.loads(line)
        return JobEvent(t=float(fields.pop("t")), kind=JobEventKind(fields.pop("event")), fields=fields)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise DamagedLogError(f"{where}: {line[:80]!r} is not an event") from error
