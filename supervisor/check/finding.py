"""What a rule is, what it looks at besides the manifest, and what it finds."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from supervisor.check.job import CheckedJob

ASSUMED_CHECKPOINT_SECONDS = 30.0
"""How long a checkpoint takes if nobody says it: as long as the grace that Kubernetes gives by default."""


class Severity(StrEnum):
    """How bad a finding is, the worst first."""

    ERROR = "error"
    """A reclaim ends the job, or loses what it has computed."""
    WARNING = "warning"
    """A reclaim costs more than it has to, such as a retry, or a loss without a notice ends the job."""
    HINT = "hint"
    """It may be what was meant."""

    @property
    def rank(self) -> int:
        return list(Severity).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of the job besides its manifest.

    Attributes:
        checkpoint_seconds: How long a checkpoint takes; None if nobody has said or measured it.
        measured: Whether the supervisor has measured it; otherwise a person has stated it.
        unread_seconds: For how long a process of the running job has not asked whether to stop.
        ranks: What is wrong with the ranks of the running job's processes, as a sentence; empty if nothing is.
    """

    checkpoint_seconds: float | None = None
    measured: bool = False
    unread_seconds: float | None = None
    ranks: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """What a rule has found.

    Attributes:
        where: The field of the manifest, or the option of a command.
        what: What would go wrong, as a sentence.
        fix: What to write instead, as a sentence.
    """

    where: str
    what: str
    fix: str


Look = Callable[[CheckedJob, Facts], Iterator[Problem]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; `title` says in a few words what it looks for."""

    id: str
    severity: Severity
    title: str
    look: Look


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem of one job, with the rule that has found it."""

    rule: str
    severity: Severity
    job: str
    where: str
    problem: str
    fix: str


def rule(identity: str, severity: Severity, title: str) -> Callable[[Look], Rule]:
    """Makes a rule of the function that looks for it."""
    return lambda look: Rule(identity, severity, title, look)
