"""What a launcher is told, and the actions that lead there."""

from dataclasses import dataclass
from enum import StrEnum

from supervisor.domain.ids import Host
from supervisor.domain.job import Phase


class OrderKind(StrEnum):
    """Should the run's command be running, or none; or is the job over."""

    RUN = "run"
    WAIT = "wait"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The whole present wish for one launcher: latest wins, nothing needs the order before it."""

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
        """Hosts that the run has to itself."""
        return len(self.hosts) - len(self.exclusions)


@dataclass(frozen=True, slots=True)
class SetHostList:
    """Have the launcher list exactly `hosts` without `exclusions`."""

    hosts: frozenset[Host]
    exclusions: frozenset[Host]


@dataclass(frozen=True, slots=True)
class StartRun:
    """Start run `run`."""

    run: int


@dataclass(frozen=True, slots=True)
class SuspendRun:
    """End run `run` and release its hosts."""

    run: int


@dataclass(frozen=True, slots=True)
class RemoveHosts:
    """Delete the pods of `hosts`, left out of run `run` and about to be gone, so that others may replace them."""

    run: int
    hosts: frozenset[Host]


@dataclass(frozen=True, slots=True)
class LeaveHosts:
    """Have the processes on `hosts`, left out of run `run`, leave where they have no stream to hear of it."""

    run: int
    hosts: frozenset[Host]


@dataclass(frozen=True, slots=True)
class AddHosts:
    """Have the operator add workers to run `run`, so that it has that many; try `number`, given up at `until`."""

    run: int
    workers: int
    number: int
    until: float


@dataclass(frozen=True, slots=True)
class StopProcesses:
    """Have those processes of run `run` stop that have no stream to hear of it."""

    run: int


@dataclass(frozen=True, slots=True)
class EndJob:
    """Nothing will be started again."""


Action = SetHostList | StartRun | SuspendRun | RemoveHosts | AddHosts | LeaveHosts | StopProcesses | EndJob
