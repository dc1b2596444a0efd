"""Defines the orders to launchers, and the actions of decisions."""

from dataclasses import dataclass
from enum import StrEnum

from supervisor.domain.agreement import Agreement
from supervisor.domain.ids import Host, JobId
from supervisor.domain.job import HubMarks, Phase, Result
from supervisor.domain.notice import ReclaimNotice


class OrderKind(StrEnum):
    """RUN: the run's command should be running. WAIT: no command should run. END: the job is over."""

    RUN = "run"
    WAIT = "wait"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The complete desired state for one launcher: the latest order replaces all earlier ones."""

    kind: OrderKind
    generation: int
    phase: Phase
    reason: str
    run: int
    stopping: bool
    hosts: tuple[Host, ...]
    exclusions: tuple[Host, ...]

    @property
    def workers(self) -> int:
        """The number of hosts without exclusions."""
        return len(self.hosts) - len(self.exclusions)


@dataclass(frozen=True, slots=True)
class SetHostList:
    """Makes the launcher list exactly `hosts` without `exclusions`."""

    hosts: frozenset[Host]
    exclusions: frozenset[Host]


@dataclass(frozen=True, slots=True)
class StartRun:
    """Starts run `run`."""

    run: int


@dataclass(frozen=True, slots=True)
class SuspendRun:
    """Ends run `run` and releases its hosts."""

    run: int


@dataclass(frozen=True, slots=True)
class RemoveHosts:
    """Deletes the pods of `hosts`, so that they are replaced.

    Run `run` excludes these hosts, which will soon be gone.
    """

    run: int
    hosts: frozenset[Host]


@dataclass(frozen=True, slots=True)
class LeaveHosts:
    """Tells processes without a stream on `hosts`, which are excluded from run `run`, to leave."""

    run: int
    hosts: frozenset[Host]


@dataclass(frozen=True, slots=True)
class AddHosts:
    """Asks the controller to grow run `run` to `workers` workers; attempt `number`, which ends at `until`."""

    run: int
    workers: int
    number: int
    until: float


@dataclass(frozen=True, slots=True)
class StopProcesses:
    """Tells processes of run `run` without a stream to stop."""

    run: int


@dataclass(frozen=True, slots=True)
class EndJob:
    """Ends the job with a result: nothing is started again."""

    result: Result


@dataclass(frozen=True, slots=True)
class WriteHubMarks:
    """Makes the job's object tell its hub exactly this. A job is given up only once none of its pods is left."""

    marks: HubMarks


Action = (
    SetHostList | StartRun | SuspendRun | RemoveHosts | AddHosts | LeaveHosts | StopProcesses | EndJob | WriteHubMarks
)


class ProcessDirectiveKind(StrEnum):
    """RUN: continue. CHECKPOINT: save and continue. LEAVE: this worker exits. STOP: rank 0 saves and all exit."""

    RUN = "RUN"
    CHECKPOINT = "CHECKPOINT"
    LEAVE = "LEAVE"
    STOP = "STOP"


@dataclass(frozen=True, slots=True)
class Worker:
    """One training process as its hello describes it. A `rank` of None is unknown."""

    process: str
    job: JobId
    run: int
    host: Host
    rank: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessDirective:
    """A directive to one process. It takes effect at `act_at`, or at once for None. On the wire this is a duration.

    `notice` is shown even before a decision, and `host` is the job's host that it concerns. `release` lets a process
    exit that is held in its exit hook. `agreement` is the present agreement of the process's run on a step; a STOP or
    CHECKPOINT with a committed one takes effect at its step. `is_own`: the notice concerns the process's own host.
    `max_wait_seconds` is how long the job waits to be resumed; 0 for ever.
    """

    kind: ProcessDirectiveKind
    run: int
    generation: int
    reason: str
    act_at: float | None = None
    notice: ReclaimNotice | None = None
    host: Host | None = None
    is_own: bool = False
    release: bool = False
    agreement: Agreement | None = None
    max_wait_seconds: float = 0.0
