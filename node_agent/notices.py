"""What the agent tells the supervisor: notices, and the state of each source."""

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import NewType

SourceName = NewType("SourceName", str)
NoticeId = NewType("NoticeId", str)


class SubjectKind(enum.Enum):
    """What a notice may be about."""

    NODE = enum.auto()
    POD = enum.auto()


@dataclass(frozen=True, slots=True)
class Subject:
    """Who will be gone: a node by its name, a pod as namespace/name; the uid tells incarnations apart."""

    kind: SubjectKind
    name: str
    uid: str


class Announcement(enum.Enum):
    """A source's present word on a subject."""

    ACTIVE = enum.auto()
    WITHDRAWN = enum.auto()


@dataclass(frozen=True, slots=True)
class NoticeReport:
    """One source's word on one subject.

    Attributes:
        revision: Grows with every change to this notice in the life of this agent.
        deadline: When the subject will be gone, on the monotonic clock; None where the source names no time.
        announced: The instant that the source named, for people.
        message: The source's words, for people.
    """

    source: SourceName
    subject: Subject
    revision: int
    announcement: Announcement
    deadline: float | None = None
    announced: datetime | None = None
    message: str = ""

    @property
    def id(self) -> NoticeId:
        """The same for every report about this subject by this source, over restarts too."""
        return NoticeId(f"{self.source}/{self.subject.uid}")


class SourceState(enum.Enum):
    """What the last poll of a source said. Unknown is neither "no notice" nor "reclaimed".

    Not spot is one that is not asked, because the node's label says that there is nothing to announce.
    """

    UNKNOWN = enum.auto()
    CLEAR = enum.auto()
    NOTICED = enum.auto()
    NOT_SPOT = enum.auto()


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How a source is doing.

    Attributes:
        last_good: When a poll last got a usable answer, on the monotonic clock; None when none did.
        detail: Why the state is unknown or not spot, or what a source that is clear warns of; for people.
        about: What it speaks of. Of one that speaks of pods, clear means that it sees them all.
    """

    source: SourceName
    state: SourceState
    last_good: float | None = None
    detail: str = ""
    about: SubjectKind = SubjectKind.NODE
