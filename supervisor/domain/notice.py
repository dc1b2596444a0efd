"""ReclaimNotice, the fact: "subject S will be gone at T, says source X"."""

from dataclasses import dataclass
from enum import StrEnum

from supervisor.domain.ids import NoticeId, Source
from supervisor.domain.instant import Instant

EVENT = Source("event")
POD_CONDITION = Source("pod-condition")
NODE_CONDITION = Source("node-condition")
API_SOURCES = frozenset({EVENT, POD_CONDITION, NODE_CONDITION})
"""Read from the API server by the supervisor itself. They know a node by its object's uid, agents by its machine's."""

SIMULATED = Source("simulated")
"""A fire drill: everything that follows from a reclaim happens, and only the reclaim itself does not."""

NOT_OF_AGENTS = API_SOURCES | {SIMULATED}
"""No agent speaks in the name of these."""


class SubjectKind(StrEnum):
    """What can be reclaimed."""

    NODE = "node"
    POD = "pod"


class NoticeState(StrEnum):
    """Where a notice is in its life; all but ACTIVE are ends."""

    ACTIVE = "active"
    WITHDRAWN = "withdrawn"
    GONE = "gone"
    EXPIRED = "expired"


class Announcement(StrEnum):
    """A source's present word on one subject."""

    ACTIVE = "active"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class Subject:
    """What a notice is about; `uid` tells a new machine under an old name from the old one."""

    kind: SubjectKind
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an agent says about one subject, before it is weighed against what is known.

    `seconds_left` counts from the receipt; None where the source names no time. `session` and `revision` order the
    reports of one node's agents.
    """

    source: Source
    subject: Subject
    session: int
    revision: int
    announcement: Announcement
    seconds_left: float | None = None
    announced: str = ""
    message: str = ""

    @property
    def id(self) -> NoticeId:
        """The notice that this report belongs to."""
        return notice_id(self.source, self.subject)

    @property
    def acknowledged_as(self) -> str:
        """The id by which the agent knows it; one agent's reports are all of its own node."""
        return f"{self.source}/{self.subject.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReclaimNotice:
    """One announcement of one source about one subject, as stored. Written by ingest only.

    `deadline` is the receipt plus the seconds that were left then, so that no other machine's clock decides.
    `announced` is the instant in the source's own words, for people.
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

    @property
    def id(self) -> NoticeId:
        """Stable over polls, restarts and drifting deadlines."""
        return notice_id(self.source, self.subject)

    @property
    def simulated(self) -> bool:
        """Whether it is a drill's."""
        return self.source == SIMULATED

    @property
    def holds(self) -> bool:
        """Whether the subject must not be used: announced, or gone and not back."""
        return self.state in (NoticeState.ACTIVE, NoticeState.GONE)


def notice_id(source: Source, subject: Subject) -> NoticeId:
    """The id under which all reports of `source` about `subject` meet."""
    # The uid alone is only what an agent says: two nodes may say the same one, by a copied setting or on purpose. The
    # name of a node is the one that its token is for.
    names = subject.name.split("/") if subject.kind is SubjectKind.POD else [subject.name]
    return NoticeId("/".join(_escaped(part) for part in (source, *names, subject.uid)))


def _escaped(part: str) -> str:
    """The part without slashes: different parts never make the same id."""
    return part.replace("%", "%25").replace("/", "%2F")
