"""The values that the library returns to a training script."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class DirectiveKind(str, Enum):
    """What this process must do."""

    RUN = "RUN"
    """Continue."""
    CHECKPOINT = "CHECKPOINT"
    """Save a checkpoint and continue."""
    LEAVE = "LEAVE"
    """Save local data and exit: this worker's host will be reclaimed, and the job continues without it."""
    STOP = "STOP"
    """Save a checkpoint and exit with a non-zero code: the whole job stops and resumes later."""


@dataclass(frozen=True)
class Directive:
    """A decision of the supervisor for this process, and its reason. Generation 0 means that none was received."""

    kind: DirectiveKind
    job: str
    run: int
    generation: int
    reason: str

    @property
    def is_final(self) -> bool:
        """Whether this process must exit. `check_alive()` is False exactly then."""
        return self.kind in (DirectiveKind.LEAVE, DirectiveKind.STOP)


@dataclass(frozen=True)
class Notice:
    """A host will be reclaimed: this process's own host, or otherwise the most urgent one of the job.

    `seconds_left` is counted when the notice is read. It is None if the source names no time.
    """

    id: str
    source: str
    host: str
    seconds_left: float | None
