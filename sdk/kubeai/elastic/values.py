"""What the library tells a training script: plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class DirectiveKind(str, Enum):
    """What this process is to do."""

    RUN = "RUN"
    """Go on."""
    CHECKPOINT = "CHECKPOINT"
    """Save a checkpoint and go on."""
    LEAVE = "LEAVE"
    """Save what is yours and exit: this worker's host will be gone, the job goes on without it."""
    STOP = "STOP"
    """Save a checkpoint and exit non-zero: the whole job stops, to go on later."""


@dataclass(frozen=True)
class Directive:
    """What the supervisor decided for this process, and why. Generation 0: nothing was heard yet."""

    kind: DirectiveKind
    job: str
    run: int
    generation: int
    reason: str

    @property
    def is_final(self) -> bool:
        """Whether this process is to end; `check_alive()` is False exactly then."""
        return self.kind in (DirectiveKind.LEAVE, DirectiveKind.STOP)


@dataclass(frozen=True)
class Notice:
    """A host will be reclaimed: this process's own where that one has a notice, else the job's most urgent.

    `seconds_left` is counted at the moment the notice was asked for; None when the source does not say.
    """

    id: str
    source: str
    host: str
    seconds_left: float | None
