"""The messages between launcher and workers: JSON lines over one TCP connection that the worker opens."""

import json
from dataclasses import asdict, dataclass

RENDEZVOUS_VARIABLE = "SIM_RENDEZVOUS"
"""Variable of a worker with its launcher's ``ADDRESS:PORT``."""
WORKER_VARIABLE = "SIM_WORKER"
"""Variable of a worker with its number at the launcher."""


class MalformedMessageError(ValueError):
    """The peer does not speak this protocol: close the connection."""


@dataclass(frozen=True, slots=True)
class WorkerHello:
    """Worker: I have started, wait for a place in a ring, and my neighbour reaches me at this port."""

    worker: int
    port: int


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """Worker: I have left the ring of this epoch and wait for a place in the next."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Synced:
    """Worker: I have the job's state."""

    epoch: int


@dataclass(frozen=True, slots=True)
class WorkerPlace:
    """Launcher: your rank in the ring of this epoch, and the port of every rank."""

    epoch: int
    rank: int
    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Update:
    """Launcher: the hosts have changed; all leave the ring of this epoch together at the next commit."""

    epoch: int


@dataclass(frozen=True, slots=True)
class WorkerBroken:
    """Launcher: a member of the ring of this epoch is dead; do not wait for it during setup."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Launcher: your host is no longer on the list; the others continue without you."""


Message = WorkerHello | WorkerReady | Synced | WorkerPlace | Update | WorkerBroken | Leave

_TYPES: dict[str, type[Message]] = {
    cls.__name__: cls for cls in (WorkerHello, WorkerReady, Synced, WorkerPlace, Update, WorkerBroken, Leave)
}


def encode(message: Message) -> bytes:
    return json.dumps({"type": type(message).__name__, **asdict(message)}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Parse a line. Raises MalformedMessageError."""
    try:
        fields = json.loads(line)
        message = _TYPES[fields.pop("type")](**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MalformedMessageError(f"{line[:80]!r} is not a message") from error
    return (
        WorkerPlace(message.epoch, message.rank, tuple(message.ports)) if isinstance(message, WorkerPlace) else message
    )
