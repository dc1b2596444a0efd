"""Defines when a job wanted workers, and which hosts were there for it: what other policies could have trained on."""

from dataclasses import dataclass

from supervisor.domain.capacity import MachinePool
from supervisor.domain.ids import Host, Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCosts:
    """How long the slowest process of a job takes, in seconds, as its processes have measured it; None is unknown.

    Attributes:
        step_seconds: For a step.
        checkpoint_seconds: To save a checkpoint.
        start_seconds: From the start of a process to its first step.
        change_seconds: To enter another round in process, from one step to the next.
    """

    step_seconds: float | None = None
    checkpoint_seconds: float | None = None
    start_seconds: float | None = None
    change_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedSpan:
    """A time in which a job wanted workers, and neither a queue nor a person held it back. It lies within one hour.

    Attributes:
        begins: Its first instant.
        ends: Its last instant, or until when it is known to go on.
        least: The fewest workers with which the job trains.
        most: The workers that it wanted.
        in_process: Whether its processes survived its last change of hosts, as those of Horovod always do.
        in_rounds: Whether hosts change in rounds of torchrun where they do. Otherwise they do with elastic Horovod.
        restarts: How often all its processes were started again.
        costs: What had been measured at its end.
    """

    begins: Instant
    ends: Instant
    least: int
    most: int
    in_process: bool
    restarts: int = 0
    costs: MeasuredCosts = MeasuredCosts()
    in_rounds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStay:
    """A time in which a host was there for a job that wanted workers, with one notice or none.

    Attributes:
        host: The host.
        begins: When it was first seen, or when the time before it ended.
        ends: Its last instant; None while it goes on.
        gone: Whether the host went then. Otherwise it was no longer observed, or its notice was withdrawn.
        noticed: When its notice became known; None without one.
        deadline: When it was to go according to the notice; None if that is unknown.
        pool: The pool of its machine, with as much of it as is known; None if that is nothing.
    """

    host: Host
    begins: Instant
    ends: Instant | None = None
    gone: bool = False
    noticed: Instant | None = None
    deadline: Instant | None = None
    pool: MachinePool | None = None
