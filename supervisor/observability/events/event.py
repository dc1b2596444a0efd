"""What one Event is to say, and about what."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from supervisor.domain.job import Phase
from supervisor.domain.notice import NoticeState


class EventType(StrEnum):
    """Whether somebody should look at it."""

    NORMAL = "Normal"
    WARNING = "Warning"


class Priority(IntEnum):
    """What is said first where there is much to say."""

    JOB = 0
    POD = 1
    NOTICE = 2


@dataclass(frozen=True, slots=True)
class EventReason:
    """One kind of thing to say, in the one word that `kubectl describe` shows, and what is done because of it."""

    name: str
    action: str
    type: EventType = EventType.NORMAL


NOTICED = EventReason("ReclaimNoticed", "Reclaim", EventType.WARNING)
EXCLUDED = EventReason("Excluded", "Exclude", EventType.WARNING)

OF_NOTICES = {
    NoticeState.ACTIVE: NOTICED,
    NoticeState.WITHDRAWN: EventReason("ReclaimWithdrawn", "Keep"),
    NoticeState.GONE: EventReason("Reclaimed", "Reclaim"),
    NoticeState.EXPIRED: EventReason("ReclaimExpired", "Keep"),
}

OF_JOBS = {
    Phase.WAITING: EventReason(Phase.WAITING, "Wait"),
    Phase.RUNNING: EventReason(Phase.RUNNING, "Run"),
    Phase.SHRINKING: EventReason(Phase.SHRINKING, "Exclude", EventType.WARNING),
    Phase.STOPPING: EventReason(Phase.STOPPING, "Stop", EventType.WARNING),
    Phase.SUSPENDED: EventReason(Phase.SUSPENDED, "Suspend"),
    Phase.RESUMING: EventReason(Phase.RESUMING, "Resume"),
    Phase.TIMED_OUT: EventReason(Phase.TIMED_OUT, "End", EventType.WARNING),
    Phase.FINISHED: EventReason(Phase.FINISHED, "End"),
}
"""The word is the phase itself, as in the column PHASE."""

EVENT_REASONS = (*OF_NOTICES.values(), EXCLUDED, *OF_JOBS.values())


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """One object of the cluster; `namespace` is empty where it has none."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


Topic = tuple[ObjectReference, ObjectReference | None, str]
"""Whom it is about, what it comes from, and its word."""

AggregationKey = tuple[ObjectReference, ObjectReference | None, str, str]
"""A topic and what is said of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDraft:
    """`note` is the sentence, `at` when it became so (Unix seconds), `related` what it comes from."""

    regarding: ObjectReference
    related: ObjectReference | None
    reason: EventReason
    note: str
    at: float
    rank: Priority

    @property
    def topic(self) -> Topic:
        """Of several about one topic that have not been sent yet, only the latest is still of use."""
        return self.regarding, self.related, self.reason.name

    @property
    def aggregation_key(self) -> AggregationKey:
        """What is the same in a repetition: the API lets an Event be counted up, and nothing else of it be changed."""
        return self.regarding, self.related, self.reason.name, self.note
