"""The agent's reports to the supervisor: notices, and the state of each source."""

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import NewType

SourceName = NewType("SourceName", str)
NoticeId = NewType("NoticeId", str)


class SubjectKind(enum.Enum):
    NODE = enum.auto()
    POD = enum.auto()


@dataclass(frozen=True, slots=True)
class Subject:
    """A node by its name, or a pod as namespace/name. The uid tells incarnations apart."""

    kind: SubjectKind
    name: str
    uid: str


class Announcement(enum.Enum):
    """Whether a source announces a reclaim of a subject, or has withdrawn it."""

    ACTIVE = enum.auto()
    WITHDRAWN = enum.auto()


class NoticeClass(enum.IntEnum):
    """How soon a job has to act on a notice; a higher one is more urgent.

    HINT: a reclaim may come, at a time that nobody knows. SCHEDULED: it comes at a time that may be days ahead. SUDDEN:
    it comes within minutes.
    """

    HINT = 1
    SCHEDULED = 2
    SUDDEN = 3


@dataclass(frozen=True, slots=True)
class NoticeReport:
    """What one source announces about one subject.

    Attributes:
        revision: Grows with every change to this notice in the life of this agent.
        deadline: When the subject will be gone, on the monotonic clock; None where the source names no time.
        announced: The instant that the source named, for people.
        message: The source's words, for people.
        cancellable: Whether the cloud can still call the reclaim off.
    """

    source: SourceName
    subject: Subject
    revision: int
    announcement: Announcement
    deadline: float | None = None
    announced: datetime | None = None
    message: str = ""
    notice_class: NoticeClass = NoticeClass.SUDDEN
    cancellable: bool = False

    @property
    def id(self) -> NoticeId:
        """The same for every report by this source about this subject, also after a restart."""
        return NoticeId(f"{self.source}/{self.subject.uid}")


class SourceState(enum.Enum):
    """The result of a source's last poll.

    UNKNOWN means neither that there is no notice nor that there is one. NOT_SPOT: the source is not polled, as the
    node's label says that the node is not spot.
    """

    UNKNOWN = enum.auto()
    CLEAR = enum.auto()
    NOTICED = enum.auto()
    NOT_SPOT = enum.auto()


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """The state of one source.

    Attributes:
        last_good: When a poll last got a usable answer, on the monotonic clock; None before the first.
        detail: For people: why the state is unknown or not spot.
        about: The kind of subject that the source reports on. If these are pods, clear means that it sees all of them.
    """

    source: SourceName
    state: SourceState
    last_good: float | None = None
    detail: str = ""
    about: SubjectKind = SubjectKind.NODE
