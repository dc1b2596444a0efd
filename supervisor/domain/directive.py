"""What one training process is told."""

from dataclasses import dataclass
from enum import StrEnum

from supervisor.domain.ids import Host, JobName
from supervisor.domain.notice import ReclaimNotice


class DirectiveKind(StrEnum):
    """Go on; save and go on; save what is yours and exit; rank 0 saves and everybody exits."""

    RUN = "RUN"
    CHECKPOINT = "CHECKPOINT"
    LEAVE = "LEAVE"
    STOP = "STOP"


@dataclass(frozen=True, slots=True)
class Worker:
    """One training process as its hello describes it; `rank` None is unknown."""

    process: str
    job: JobName
    run: int
    host: Host
    rank: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """A directive to one process. `act_at` is the instant it takes effect, None at once; it travels as a duration.

    `notice` is shown before anything is decided, `host` is the job's host that it means; `release` lets a process go
    that is held in its exit hook.
    """

    kind: DirectiveKind
    run: int
    generation: int
    reason: str
    act_at: float | None = None
    notice: ReclaimNotice | None = None
    host: Host | None = None
    release: bool = False
