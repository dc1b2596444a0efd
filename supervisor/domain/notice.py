"""Defines ReclaimNotice, the fact "subject S will be gone at T, says source X"."""

from dataclasses import dataclass
from enum import StrEnum

from supervisor.domain.ids import Instant, NoticeId, Source

EVENT = Source("event")
POD_CONDITION = Source("pod-condition")
NODE_CONDITION = Source("node-condition")
NODE_MAINTENANCE = Source("node-maintenance")
NODE_TAINT = Source("node-taint")
SCALE_IN = Source("scale-in")
API_SOURCES = frozenset({EVENT, POD_CONDITION, NODE_CONDITION, NODE_MAINTENANCE, NODE_TAINT, SCALE_IN})
"""The supervisor reads these from the API server. Their notices contain the uid of a Node object, not of a machine."""

SIMULATED = Source("simulated")
"""The source of fire drills: everything that follows from a reclaim happens, but not the reclaim itself."""

OPERATOR = Source("operator")
"""A person drains the node. Such a notice stands until a person ends it, or the node is gone."""

OF_PEOPLE = frozenset({SIMULATED, OPERATOR})
"""The sources of people.

No metadata service can deny their notices, which contain the uid of a machine or of a Node object.
"""

NOT_OF_AGENTS = API_SOURCES | OF_PEOPLE
"""Sources that agents may not report."""


class SubjectKind(StrEnum):
    """The kinds of things that a cloud can reclaim."""

    NODE = "node"
    POD = "pod"


class NoticeState(StrEnum):
    """The state of a notice; all but ACTIVE are final for the episode."""

    ACTIVE = "active"
    WITHDRAWN = "withdrawn"
    GONE = "gone"
    EXPIRED = "expired"


class NoticeClass(StrEnum):
    """How soon a job has to act on a notice.

    SUDDEN: the subject is gone within minutes. SCHEDULED: it goes at a time that may be days ahead. HINT: it may be
    reclaimed, at a time that nobody knows.
    """

    SUDDEN = "sudden"
    SCHEDULED = "scheduled"
    HINT = "hint"


class Announcement(StrEnum):
    """What a source says about one subject at present."""

    ACTIVE = "active"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class Subject:
    """The node or pod that a notice is about; `uid` tells it from an earlier one of the same name."""

    kind: SubjectKind
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A statement about one subject, before it is applied to the stored notice.

    `seconds_left` counts from the receipt; None if the source names no time. `session` and `revision` order the reports
    of one node's agents. `cancellable`: the cloud can still call it off.
    """

    source: Source
    subject: Subject
    session: int
    revision: int
    announcement: Announcement
    seconds_left: float | None = None
    announced: str = ""
    message: str = ""
    notice_class: NoticeClass = NoticeClass.SUDDEN
    cancellable: bool = False

    @property
    def id(self) -> NoticeId:
        """The notice that this report belongs to."""
        return notice_id(self.source, self.subject)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimNotice:
    """One announcement of one source about one subject, as stored. Only ingest writes it.

    `first_seen` is when the source first announced it, or last changed its class. `deadline` is the receipt plus the
    seconds that were left then, so that no other machine's clock matters; None if the source names no time, and always
    for a hint. `announced` is the instant as the source wrote it, for people.
    """

    source: Source
    subject: Subject
    episode: int
    state: NoticeState
    first_seen: Instant
    deadline: Instant | None = None
    announced: str = ""
    message: str = ""
    session: int
    revision: int
    ended_at: Instant | None = None
    notice_class: NoticeClass = NoticeClass.SUDDEN
    cancellable: bool = False

    @property
    def id(self) -> NoticeId:
        """The id, which stays the same over polls, restarts and drifting deadlines."""
        return notice_id(self.source, self.subject)

    @property
    def simulated(self) -> bool:
        """Whether a drill made the notice."""
        return self.source == SIMULATED

    @property
    def drains(self) -> bool:
        """Whether a person drains the subject."""
        return self.source == OPERATOR

    @property
    def drained_by(self) -> str:
        """The person who drains the subject. The message begins with that name; the reason follows."""
        return self.message.partition(": ")[0] or "an operator"

    @property
    def holds(self) -> bool:
        """Whether the announcement still holds: the subject will go, or has gone and is not back."""
        return self.state in (NoticeState.ACTIVE, NoticeState.GONE)


def notice_id(source: Source, subject: Subject) -> NoticeId:
    """The id of all reports of `source` about `subject`."""
    # The uid alone is not enough: two nodes may report the same one, by a copied setting or on purpose. The name of a
    # node is authenticated by its agent's token.
    names = subject.name.split("/") if subject.kind is SubjectKind.POD else [subject.name]
    # With escaped slashes, different parts never give the same id.
    escaped = [part.replace("%", "%25").replace("/", "%2F") for part in (source, *names, subject.uid)]
    return NoticeId("/".join(escaped))


SHORTEST_SECONDS = 1.0
LONGEST_SECONDS = 3600.0
"""The maximum lead, so that every drill ends by itself."""

LONGEST_DRAIN_SECONDS = 7 * 86400.0
"""The maximum lead of a drain, which does not end by itself."""

EVENT_REASON = "SimulatedReclaim"
"""The reason of an Event that requests a drill on its pod or node, or its end."""

LEAD_ANNOTATION = "job-supervisor.kube-ai.io/simulated-lead-seconds"
"""The annotation of such an Event with the lead from its creation; 0 ends the drill."""


def explained(by: str) -> str:
    """The message of a drill's notice."""
    return f"A drill, held by {by}: the machine stays."
