"""What notifications are about, and the message that a receiver gets."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256

from supervisor.domain.ids import JobName


class Kind(StrEnum):
    """What a notification can be about; targets choose among these."""

    SHRUNK = "shrunk"
    SUSPENDED = "suspended"
    RESUMED = "resumed"
    TIMED_OUT = "timed-out"
    FINISHED = "finished"
    LATE_STOP = "late-stop"
    UNCOVERED = "uncovered-workers"
    NOTICE = "reclaim-notice"


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


SUMMARY, TEST = "summary", "test"
"""Kinds of messages that are about more than one job, or about nothing."""

SEVERITIES = {
    Kind.SHRUNK: Severity.WARNING,
    Kind.SUSPENDED: Severity.WARNING,
    Kind.RESUMED: Severity.INFO,
    Kind.TIMED_OUT: Severity.CRITICAL,
    Kind.FINISHED: Severity.INFO,
    Kind.LATE_STOP: Severity.CRITICAL,
    Kind.UNCOVERED: Severity.CRITICAL,
    Kind.NOTICE: Severity.INFO,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One thing that happened: `at` is Unix seconds, `job` None for a notice, `hosts` those that it is about.

    `id` is the same whichever leader reports it, so that receivers can recognize a repetition.
    """

    id: str
    kind: Kind
    text: str
    at: float
    namespace: str
    job: JobName | None = None
    hosts: tuple[str, ...] = ()
    drill: bool = False

    @property
    def severity(self) -> Severity:
        """How urgent it is; a drill is not."""
        return Severity.INFO if self.drill else SEVERITIES[self.kind]


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message about `count` happenings, of which `events` are the latest.

    `kind` is that of the most important one, or `summary` or `test`. `link` and `command` show more about the job; they
    are empty if there is no such job or no page.
    """

    id: str
    kind: str
    severity: Severity
    title: str
    cluster: str
    namespace: str
    job: str
    drill: bool
    at: float
    count: int
    events: tuple[Happening, ...]
    link: str = ""
    command: str = ""


def identifier(*parts: object) -> str:
    """A short id that depends on these parts alone."""
    return sha256("/".join(str(part) for part in parts).encode()).hexdigest()[:16]


def joint_id(happenings: Sequence[Happening]) -> str:
    """The id of a message about these."""
    return happenings[0].id if len(happenings) == 1 else identifier(*(each.id for each in happenings))
