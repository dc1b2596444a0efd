"""What can happen to kubeai-run. Threads and signal handlers put these on the one queue that the main thread reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .exit_codes import ExitCode
    from .orders import Order, Report


class Event:
    """Something that happened."""


@dataclass(frozen=True)
class Ordered(Event):
    """The supervisor's present order came."""

    order: Order


@dataclass(frozen=True)
class Lost(Event):
    """The stream ended, or could not be opened."""

    reason: str


@dataclass(frozen=True)
class Confirmed(Event):
    """The supervisor knows what this report says."""

    report: Report


@dataclass(frozen=True)
class Rejected(Event):
    """The supervisor will not have this job: end with this code."""

    code: ExitCode
    reason: str


@dataclass(frozen=True)
class LogMessage(Event):
    """Something that only people need to know."""

    text: str


@dataclass(frozen=True)
class HostsChanged(Event):
    """The operator's list is another one."""

    hosts: tuple[str, ...]


@dataclass(frozen=True)
class CommandEnded(Event):
    """The command and its whole group are gone; the code is the command's, or minus its signal."""

    exit_code: int


@dataclass(frozen=True)
class Signalled(Event):
    """SIGTERM or SIGINT came."""

    number: int
