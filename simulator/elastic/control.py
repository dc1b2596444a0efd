"""What the launcher and a worker say to each other: JSON lines over one TCP connection, made by the worker."""

import json
from dataclasses import asdict, dataclass

RENDEZVOUS_VARIABLE = "SIM_RENDEZVOUS"
"""Environment of a worker: where its launcher listens, ``ADDRESS:PORT``."""
WORKER_VARIABLE = "SIM_WORKER"
"""Environment of a worker: the number under which its launcher knows it."""


class MalformedMessageError(ValueError):
    """The other side is not one of ours: end the connection."""


@dataclass(frozen=True, slots=True)
class Hello:
    """Worker: I have started, wait for a place in a ring, and my neighbour reaches me at this port."""

    worker: int
    port: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Worker: I have left the ring of this epoch, whole or broken, and wait for a place in the next."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Synced:
    """Worker: I hold the state of the job."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Place:
    """Launcher: your rank in the ring of this epoch, and the port of every rank."""

    epoch: int
    rank: int
    ports: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Update:
    """Launcher: the hosts have changed; leave the ring of this epoch at the next commit, all together."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Broken:
    """Launcher: a member of the ring of this epoch is dead; do not wait for it while setting the ring up."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Leave:
    """Launcher: your host is no longer on the list, and the others go on without you."""


Message = Hello | Ready | Synced | Place | Update | Broken | Leave

_TYPES: dict[str, type[Message]] = {cls.__name__: cls for cls in (Hello, Ready, Synced, Place, Update, Broken, Leave)}


def encode(message: Message) -> bytes:
    """One line."""
    return json.dumps({"type": type(message).__name__, **asdict(message)}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Read one line back; raises MalformedMessageError."""
    try:
        fields = json.loads(line)
        message = _TYPES[fields.pop("type")](**fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MalformedMessageError(f"{line[:80]!r} is no message") from error
    return Place(message.epoch, message.rank, tuple(message.ports)) if isinstance(message, Place) else message
