"""What one Event is to say, and about what."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from supervisor.domain.job import Phase
from supervisor.domain.notice import NoticeState


class Kind(StrEnum):
    """Whether somebody should look at it."""

    NORMAL = "Normal"
    WARNING = "Warning"


class Rank(IntEnum):
    """What is said first where there is much to say."""

    JOB = 0
    POD = 1
    NOTICE = 2


@dataclass(frozen=True, slots=True)
class EventReason:
    """One kind of thing to say, in the one word that `kubectl describe` shows, and what is done because of it."""

    reason: str
    action: str
    kind: Kind = Kind.NORMAL


NOTICED = EventReason("ReclaimNoticed", "Reclaim", Kind.WARNING)
EXCLUDED = EventReason("Excluded", "Exclude", Kind.WARNING)

OF_NOTICES = {
    NoticeState.ACTIVE: NOTICED,
    NoticeState.WITHDRAWN: EventReason("ReclaimWithdrawn", "Keep"),
    NoticeState.GONE: EventReason("Reclaimed", "Reclaim"),
    NoticeState.EXPIRED: EventReason("ReclaimExpired", "Keep"),
}

OF_JOBS = {
    Phase.WAITING: EventReason(Phase.WAITING, "Wait"),
    Phase.RUNNING: EventReason(Phase.RUNNING, "Run"),
    Phase.SHRINKING: EventReason(Phase.SHRINKING, "Exclude", Kind.WARNING),
    Phase.STOPPING: EventReason(Phase.STOPPING, "Stop", Kind.WARNING),
    Phase.SUSPENDED: EventReason(Phase.SUSPENDED, "Suspend"),
    Phase.RESUMING: EventReason(Phase.RESUMING, "Resume"),
    Phase.TIMED_OUT: EventReason(Phase.TIMED_OUT, "End", Kind.WARNING),
    Phase.FINISHED: EventReason(Phase.FINISHED, "End"),
}
"""The word is the phase itself, as in the column PHASE."""

EVENT_REASONS = (*OF_NOTICES.values(), EXCLUDED, *OF_JOBS.values())


@dataclass(frozen=True, slots=True)
class About:
    """One object of the cluster; `namespace` is empty where it has none."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


Topic = tuple[About, About | None, str]
"""Whom it is about, what it comes from, and its word."""

Repeated = tuple[About, About | None, str, str]
"""A topic and what is said of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDraft:
    """`note` is the sentence, `at` when it became so (Unix seconds), `related` what it comes from."""

    about: About
    related: About | None
    word: EventReason
    note: str
    at: float
    rank: Rank

    @property
    def topic(self) -> Topic:
        """Of several about one topic that have not been sent yet, only the latest is still of use."""
        return self.about, self.related, self.word.reason

    @property
    def repeated(self) -> Repeated:
        """What is the same in a repetition: the API lets an Event be counted up, and nothing else of it be changed."""
        return self.about, self.related, self.word.reason, self.note
