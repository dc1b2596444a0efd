"""Defines the agent's vocabulary: answers of sources, reports to the supervisor, and failpoints."""

import enum
from dataclasses import dataclass
from datetime import datetime
from typing import NewType, Protocol

SourceName = NewType("SourceName", str)
NoticeId = NewType("NoticeId", str)


class AgentFailpoint(enum.StrEnum):
    """Every failpoint (see `servicekit.failpoints`), in the order in which a notice meets them."""

    SOURCE_ANSWERED = "source.answered"
    REPORT_KEPT = "report.kept"
    HELLO_SENDING = "hello.sending"
    HELLO_SENT = "hello.sent"
    NOTICE_SENDING = "notice.sending"
    NOTICE_SENT = "notice.sent"
    ACKNOWLEDGEMENT_RECEIVED = "acknowledgement.received"
    ACKNOWLEDGEMENT_KEPT = "acknowledgement.kept"


class NoticeUrgency(enum.IntEnum):
    """How soon a job has to act on a notice; a higher one is more urgent.

    HINT: a reclaim may come, at a time that nobody knows. SCHEDULED: it comes at a time that may be days ahead. SUDDEN:
    it comes within minutes.
    """

    HINT = 1
    SCHEDULED = 2
    SUDDEN = 3


# What a source answers.


class SourceUnavailable(Exception):  # noqa: N818 - it names what is so; an unknown is no error of the agent's
    """The source gave no usable answer, so its state is unknown. The text is the reason, for people."""


class ServiceBusy(SourceUnavailable):
    """A metadata service exists and refuses to answer now, so it may be that of any cloud."""


class MetadataMode(enum.StrEnum):
    """Whether requests to the metadata service carry a session token."""

    # Without a token until a request is refused for the lack of one, with tokens from then on.
    AUTO = "auto"
    PLAIN = "plain"
    HARDENED = "hardened"


@dataclass(frozen=True, slots=True)
class Clear:
    """The source announces nothing."""


@dataclass(frozen=True, slots=True)
class Noticed:
    """The source announces that the node will be reclaimed.

    Attributes:
        announced: The instant that the source named; None where it names none.
        seconds_left: Seconds from this answer until then. A source that names no instant gives its usual lead, which
            counts from the first of these answers; None: it has none, and the supervisor's default stands in.
        message: For people; it must not have anything that changes from poll to poll.
        cancellable: Whether the cloud can still call the reclaim off.
    """

    announced: datetime | None
    seconds_left: float | None
    message: str
    notice_class: NoticeUrgency = NoticeUrgency.SUDDEN
    cancellable: bool = False


Answer = Clear | Noticed


class MachinePrice(enum.Enum):
    """How the machine is paid for. SPOT: the cloud can reclaim it."""

    UNKNOWN = enum.auto()
    SPOT = enum.auto()
    ON_DEMAND = enum.auto()


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The machine under this node, as its cloud or the node's labels describe it. An unknown field is empty.

    Attributes:
        uid: The machine's id; empty in a description by labels.
        cloud: Named as its source.
        spot_strategy: The cloud's own word for how the price is set.
    """

    uid: str
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    cloud: str = ""
    price_class: MachinePrice = MachinePrice.UNKNOWN
    spot_strategy: str = ""


class NoticeSource(Protocol):
    """A source of announcements about this node; `name` is part of every notice's id.

    The caller cancels a call that takes too long, and never makes two calls at once.
    """

    name: SourceName

    async def identify(self) -> NodeIdentity | None:
        """Returns this node's identity; None where this source never knows it.

        Raises:
            SourceUnavailable: It is not known now; ask again.
        """

    async def poll(self) -> Answer:
        """Asks once for announcements.

        Raises:
            SourceUnavailable: There was no usable answer.
        """

    async def close(self) -> None:
        """Releases connections and files."""


class CloudSource(NoticeSource, Protocol):
    """A source that recognizes the metadata service of its own cloud."""

    async def recognize(self) -> bool:
        """Returns whether the answer has the signature of this cloud.

        Raises:
            SourceUnavailable: There was no usable answer.
        """


# What the agent reports.


class NoticeSubjectKind(enum.Enum):
    NODE = enum.auto()
    POD = enum.auto()


@dataclass(frozen=True, slots=True)
class NoticeSubject:
    """A node by its name, or a pod as namespace/name. The uid tells incarnations apart."""

    kind: NoticeSubjectKind
    name: str
    uid: str


class AnnouncementState(enum.Enum):
    """Whether a source announces a reclaim of a subject, or has withdrawn it."""

    ACTIVE = enum.auto()
    WITHDRAWN = enum.auto()


@dataclass(frozen=True, slots=True)
class NoticeReport:
    """The announcement of one source about one subject.

    Attributes:
        revision: Grows with every change to this notice in the life of this agent.
        deadline: When the subject will be gone, on the monotonic clock; None where the source names no time.
        announced: The instant that the source named, for people.
        message: The source's words, for people.
        cancellable: Whether the cloud can still call the reclaim off.
    """

    source: SourceName
    subject: NoticeSubject
    revision: int
    announcement: AnnouncementState
    deadline: float | None = None
    announced: datetime | None = None
    message: str = ""
    notice_class: NoticeUrgency = NoticeUrgency.SUDDEN
    cancellable: bool = False

    @property
    def id(self) -> NoticeId:
        """Identifies the notice: the same in every report by this source about this subject, also after a restart."""
        return NoticeId(f"{self.source}/{self.subject.uid}")


class PollResult(enum.Enum):
    """The result of a source's last poll.

    UNKNOWN means neither that there is no notice nor that there is one. NOT_SPOT: the source is not polled, as the
    node's label says that the node is not spot.
    """

    UNKNOWN = enum.auto()
    CLEAR = enum.auto()
    NOTICED = enum.auto()
    NOT_SPOT = enum.auto()


@dataclass(frozen=True, slots=True)
class ReportedSource:
    """The state of one source.

    Attributes:
        last_good: When a poll last got a usable answer, on the monotonic clock; None before the first.
        detail: For people: why the state is unknown or not spot.
        about: The kind of subject that the source reports on. If these are pods, clear means that it sees all of them.
    """

    source: SourceName
    state: PollResult
    last_good: float | None = None
    detail: str = ""
    about: NoticeSubjectKind = NoticeSubjectKind.NODE
