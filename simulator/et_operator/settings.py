"""How fast the stand-in is, and which of the operator's rarer flaws it shows."""

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds, as they were observed between a cause and what the operator made of it."""

    suspend: float = 0.3
    """From the annotation until everything is deleted."""
    launcher_end: float = 1.1
    """From the launcher's end until the phase tells of it."""
    restart: float = 0.3
    """From the phase Failed until the restart is counted and begins."""
    replacement: float = 1.4
    """From a worker's end until its replacement is made."""
    hosts: float = 0.06
    """From a change of the running workers until the launcher's host list is rewritten."""
    status: float = 0.5
    """From a change of the running workers until the status tells of it: one write for many changes."""
    forget: float = 8.0
    """How long the status still lists a worker that was deleted."""
    write: float = 0.02
    """From looking at a job until its status is written over, whatever others have made of it meanwhile."""
    retry: float = 1.0
    """After something that did not work."""
    poll: float = 5.0
    """Between two looks whether the workers of a ScaleOut run."""


QUICK = Pace(
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
"""For tests that do not measure it."""


class Flaw(StrEnum):
    """What the real operator does only at times, or what makes jobs harm each other: shown where asked for."""

    EXTRA_WORKER = "extra-worker"
    """A fresh job has one worker more than it wants: the operator's race with its own cache."""
    EXTRA_WORKER_AT_START = "extra-worker-at-start"
    """The same for each running job, when the operator starts."""
    ALL_NAMESPACES = "all-namespaces"
    """Pods are looked for by the job's name alone: jobs of one name in two namespaces share all their pods."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one operator."""

    pace: Pace = Pace()
    flaws: frozenset[Flaw] = frozenset()
    namespace: str = ""
    """Whose jobs it runs; empty = of all."""
    commands: bool = True
    """Whether commands can be run in launchers. Where nothing runs in them, the list there is not rewritten."""


AS_OBSERVED = Settings()
