"""The directives to training processes."""

from dataclasses import dataclass
from enum import StrEnum

from supervisor.domain.agreement import Agreement
from supervisor.domain.ids import Host, JobId
from supervisor.domain.notice import ReclaimNotice


class DirectiveKind(StrEnum):
    """RUN: continue. CHECKPOINT: save and continue. LEAVE: this worker exits. STOP: rank 0 saves and all exit."""

    RUN = "RUN"
    CHECKPOINT = "CHECKPOINT"
    LEAVE = "LEAVE"
    STOP = "STOP"


@dataclass(frozen=True, slots=True)
class Worker:
    """One training process as its hello describes it; `rank` None is unknown."""

    process: str
    job: JobId
    run: int
    host: Host
    rank: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """A directive to one process. It takes effect at `act_at`, None: at once; on the wire this is a duration.

    `notice` is shown even before a decision, and `host` is the job's host that it concerns. `release` lets a process
    exit that is held in its exit hook. `agreement` is the present agreement of the process's run on a step; a STOP or
    CHECKPOINT with a committed one takes effect at its step.
    """

    kind: DirectiveKind
    run: int
    generation: int
    reason: str
    act_at: float | None = None
    notice: ReclaimNotice | None = None
    host: Host | None = None
    release: bool = False
    agreement: Agreement | None = None
