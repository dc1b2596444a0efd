"""The speed of the stand-in, and the rarer flaws of the operator that it reproduces."""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class OperatorPace:
    """Observed seconds between a cause and the operator's reaction."""

    suspend: float = 0.3
    """From the annotation until everything is deleted."""
    launcher_end: float = 1.1
    """From the launcher's exit until the phase shows it."""
    restart: float = 0.3
    """From the phase Failed until the restart is counted and begins."""
    replacement: float = 1.4
    """From a worker's exit until its replacement is created."""
    hosts: float = 0.06
    """From a change of the running workers until the launcher's host list is rewritten."""
    status: float = 0.5
    """From a change of the running workers until the status shows it: one write for many changes."""
    forget: float = 8.0
    """How long the status still lists a worker that was deleted."""
    write: float = 0.02
    """From reading a job until its status is overwritten, whatever others have written meanwhile."""
    retry: float = 1.0
    """After a failure."""
    poll: float = 5.0
    """Between two checks of whether the workers of a ScaleOut run."""


QUICK = OperatorPace(
    suspend=0.05,
    launcher_end=0.1,
    restart=0.1,
    replacement=0.1,
    hosts=0.02,
    status=0.05,
    forget=0.5,
    write=0.005,
    retry=0.1,
    poll=0.1,
)
"""For tests that do not measure the pace."""


class Flaw(StrEnum):
    """Behaviour that the real operator shows only at times, or that makes jobs harm each other. Opt-in."""

    EXTRA_WORKER = "extra-worker"
    """A new job gets one worker too many, because the operator races with its own cache."""
    EXTRA_WORKER_AT_START = "extra-worker-at-start"
    """The same for each running job, when the operator starts."""
    ALL_NAMESPACES = "all-namespaces"
    """Pods are found by the job's name alone, so that jobs of one name in two namespaces share all pods."""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    pace: OperatorPace = OperatorPace()
    flaws: frozenset[Flaw] = frozenset()
    namespace: str = ""
    """The jobs' namespace; empty = all."""
    commands: bool = True
    """Whether commands can run in launchers. Otherwise the host list is not rewritten."""


AS_OBSERVED = OperatorSettings()
