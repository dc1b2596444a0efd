"""Events for kubeai-run. Threads and signal handlers put them on the queue that the main thread reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .exit_codes import ExitCode
    from .orders import Order, Report


class Event:
    """Base class of all events."""


@dataclass(frozen=True)
class Ordered(Event):
    """An order was received."""

    order: Order


@dataclass(frozen=True)
class Lost(Event):
    """The stream ended or could not be opened."""

    reason: str


@dataclass(frozen=True)
class Confirmed(Event):
    """The supervisor has confirmed a report."""

    report: Report


@dataclass(frozen=True)
class Rejected(Event):
    """The supervisor rejects this job: exit with this code."""

    code: ExitCode
    reason: str


@dataclass(frozen=True)
class LogMessage(Event):
    """A message for people."""

    text: str


@dataclass(frozen=True)
class HostsChanged(Event):
    """The operator's host list has changed."""

    hosts: tuple[str, ...]


@dataclass(frozen=True)
class CommandEnded(Event):
    """The command and its whole group have ended, with the command's exit code or minus its signal."""

    exit_code: int


@dataclass(frozen=True)
class Signalled(Event):
    """SIGTERM or SIGINT was received."""

    number: int
