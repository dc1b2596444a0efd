"""The reasons of Events, and the draft of one Event."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from supervisor.domain.job import Phase
from supervisor.domain.notice import NoticeState


class EventType(StrEnum):
    """The types that Kubernetes allows."""

    NORMAL = "Normal"
    WARNING = "Warning"


class Priority(IntEnum):
    """The order in which Events are sent when many wait."""

    JOB = 0
    POD = 1
    NOTICE = 2


@dataclass(frozen=True, slots=True)
class EventReason:
    """A reason as `kubectl describe` shows it, with the action that the Event reports."""

    name: str
    action: str
    type: EventType = EventType.NORMAL


IGNORED = EventReason("RequestIgnored", "Ignore", EventType.WARNING)
RELEASED = EventReason("Released", "Release")
NOTICED = EventReason("ReclaimNoticed", "Reclaim", EventType.WARNING)
EXCLUDED = EventReason("Excluded", "Exclude", EventType.WARNING)

OF_NOTICES = {
    NoticeState.ACTIVE: NOTICED,
    NoticeState.WITHDRAWN: EventReason("ReclaimWithdrawn", "Keep"),
    NoticeState.GONE: EventReason("Reclaimed", "Reclaim"),
    NoticeState.EXPIRED: EventReason("ReclaimExpired", "Keep"),
}

OF_JOBS = {
    Phase.QUEUED: EventReason(Phase.QUEUED, "Wait"),
    Phase.WAITING: EventReason(Phase.WAITING, "Wait"),
    Phase.RUNNING: EventReason(Phase.RUNNING, "Run"),
    Phase.SHRINKING: EventReason(Phase.SHRINKING, "Exclude", EventType.WARNING),
    Phase.STOPPING: EventReason(Phase.STOPPING, "Stop", EventType.WARNING),
    Phase.SUSPENDED: EventReason(Phase.SUSPENDED, "Suspend"),
    Phase.RESUMING: EventReason(Phase.RESUMING, "Resume"),
    Phase.TIMED_OUT: EventReason(Phase.TIMED_OUT, "End", EventType.WARNING),
    Phase.FINISHED: EventReason(Phase.FINISHED, "End"),
}
"""The reason is the phase, as in the column PHASE."""

UNSAVED = EventReason(Phase.SUSPENDED, "Suspend", EventType.WARNING)
"""The job is suspended, and its last steps are lost."""

EVENT_REASONS = (*OF_NOTICES.values(), EXCLUDED, IGNORED, RELEASED, *OF_JOBS.values())


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """A Kubernetes object; `namespace` is empty for a cluster-scoped one."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


Topic = tuple[ObjectReference, ObjectReference | None, str]
"""The object, the related object and the reason."""

AggregationKey = tuple[ObjectReference, ObjectReference | None, str, str]
"""A topic and the note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDraft:
    """One Event to send: `note` is its text, `at` the time (Unix seconds), `related` the object behind it."""

    regarding: ObjectReference
    related: ObjectReference | None
    reason: EventReason
    note: str
    at: float
    priority: Priority

    @property
    def topic(self) -> Topic:
        """Of several unsent drafts with the same topic, only the latest is sent."""
        return self.regarding, self.related, self.reason.name

    @property
    def aggregation_key(self) -> AggregationKey:
        """Equal for repetitions of an Event: the API allows to increment its count and to change nothing else."""
        return self.regarding, self.related, self.reason.name, self.note
