"""The events of a launcher, which it takes from one queue."""

from dataclasses import dataclass

from simulator.elastic.control import Message
from simulator.elastic.membership import WorkerId


@dataclass(frozen=True, slots=True)
class Discovered:
    """The discovery script has answered."""

    hosts: frozenset[str]


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A worker has sent a message."""

    worker: WorkerId
    message: Message


@dataclass(frozen=True, slots=True)
class Exited:
    """A worker process has ended and is reaped."""

    worker: WorkerId
    code: int


@dataclass(frozen=True, slots=True)
class JobEnded:
    """The launcher must exit with this code."""

    code: int
    reason: str


LauncherEvent = Discovered | MessageReceived | Exited | JobEnded
