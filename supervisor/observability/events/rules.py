"""Decides which Events a change causes: one on the job for each group, and one on each affected pod."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Protocol

from supervisor.domain.ids import Host
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.observability.journal import LIVE, Change, JobChanged, JobForgotten, NoticeChanged, is_unsaved
from supervisor.store.conditions import sentence


class EventSeverity(StrEnum):
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
    type: EventSeverity = EventSeverity.NORMAL


IGNORED = EventReason("RequestIgnored", "Ignore", EventSeverity.WARNING)
RELEASED = EventReason("Released", "Release")
NOTICED = EventReason("ReclaimNoticed", "Reclaim", EventSeverity.WARNING)
EXCLUDED = EventReason("Excluded", "Exclude", EventSeverity.WARNING)

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
    Phase.SHRINKING: EventReason(Phase.SHRINKING, "Exclude", EventSeverity.WARNING),
    Phase.STOPPING: EventReason(Phase.STOPPING, "Stop", EventSeverity.WARNING),
    Phase.SUSPENDED: EventReason(Phase.SUSPENDED, "Suspend"),
    Phase.RESUMING: EventReason(Phase.RESUMING, "Resume"),
    Phase.TIMED_OUT: EventReason(Phase.TIMED_OUT, "End", EventSeverity.WARNING),
    Phase.FINISHED: EventReason(Phase.FINISHED, "End"),
}
"""The reason is the phase, as in the column PHASE."""

GIVEN_UP = EventReason("GivenUp", "Move", EventSeverity.WARNING)
UNSAVED = EventReason(Phase.SUSPENDED, "Suspend", EventSeverity.WARNING)
"""The job is suspended, and its last steps are lost."""

EVENT_REASONS = (*OF_NOTICES.values(), EXCLUDED, IGNORED, RELEASED, GIVEN_UP, *OF_JOBS.values())


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
    """An Event to send: `note` is its text, `at` the time (Unix seconds), `related` the object behind it."""

    regarding: ObjectReference
    related: ObjectReference | None
    reason: EventReason
    note: str
    at: float
    priority: Priority

    @property
    def topic(self) -> Topic:
        """The topic. Of several unsent drafts with the same topic, only the latest is sent."""
        return self.regarding, self.related, self.reason.name

    @property
    def aggregation_key(self) -> AggregationKey:
        """A key that is equal for repetitions of an Event.

        The API allows to increment an Event's count and to change nothing else.
        """
        return self.regarding, self.related, self.reason.name, self.note


_RELEASED = (
    "The supervisor does not look after the job any more: the job does not opt in, or a person has suspended it."
)


class ReferenceResolver(Protocol):
    """Finds the Kubernetes objects of notices and jobs that still exist."""

    def notice(self, notice: ReclaimNotice) -> tuple[ObjectReference | None, Iterable[ObjectReference]]:
        """The ReclaimNotice, and the pods of supervised jobs that it affects."""

    def job(self, job: SupervisedJob) -> Sequence[ObjectReference]:
        """The SupervisedJob, followed by the object of the job's kind."""

    def released(self, job: SupervisedJob) -> Sequence[ObjectReference]:
        """The object of the job's kind if the supervisor has released it: it exists and does not opt in any more."""

    def pods(self, job: SupervisedJob, hosts: Iterable[Host]) -> Iterable[ObjectReference]:
        """The pods of these hosts of a job."""


def drafts(change: Change, objects: ReferenceResolver) -> Iterator[EventDraft]:
    """Returns the Events for a change. A drifting deadline or a report of a host causes none."""
    match change:
        case NoticeChanged(before, after, at):
            yield from _of_notice(before, after, objects, at)
        case JobChanged(before, after, at):
            yield from _of_job(before, after, objects, at)
            # One Event for all requests of the job that are ignored from now on.
            known = frozenset[str]() if before is None else frozenset(before.spec.ignored)
            if note := " ".join(why for why in after.spec.ignored if why not in known):
                yield from _about_job(objects.job(after), IGNORED, note, at)
        case JobForgotten(before, at):
            # The job itself remains. One that was only shown, but not supervised, is not let go.
            if not before.over and not before.spec.refused:
                yield from _about_job(objects.released(before), RELEASED, _RELEASED, at)


def _of_notice(
    before: ReclaimNotice | None, after: ReclaimNotice, objects: ReferenceResolver, at: float
) -> Iterator[EventDraft]:
    known = before if before is not None and before.episode == after.episode else None
    if known is not None and (known.state, known.notice_class) == (after.state, after.notice_class):
        return
    # A notice that had ended when it became known, such as one from an old Event found at start-up, announces nothing.
    if known is None and after.state is not NoticeState.ACTIVE:
        return
    reason, note = OF_NOTICES[after.state], sentence(after)
    notice, pods = objects.notice(after)
    for pod in pods:
        yield EventDraft(regarding=pod, related=notice, reason=reason, note=note, at=at, priority=Priority.POD)
    if notice is not None:
        yield EventDraft(regarding=notice, related=None, reason=reason, note=note, at=at, priority=Priority.NOTICE)


def _of_job(
    before: SupervisedJob | None, after: SupervisedJob, objects: ReferenceResolver, at: float
) -> Iterator[EventDraft]:
    if before is not None:
        old, new = before.decision, after.decision
        grows = new.growing is not None and new.growing != old.growing
        excludes = new.phase in LIVE and new.exclusions != old.exclusions and new.reason != old.reason
        saves = new.checkpoint is not None and new.checkpoint != old.checkpoint
        gives_up = new.given_up_since is not None and old.given_up_since is None
        # A reason alone deserves no Event.
        if new.phase is old.phase and not (grows or excludes or saves or gives_up):
            return
    reason, note = OF_JOBS[after.decision.phase], after.decision.reason
    if after.decision.given_up_since is not None:
        reason = GIVEN_UP
    if after.decision.phase is Phase.SUSPENDED and before is not None and is_unsaved(before, after):
        reason = UNSAVED
    known = objects.job(after)
    resource = known[0] if known else None
    yield from _about_job(known, reason, note, at)
    excluded = after.decision.exclusions - (before.decision.exclusions if before else frozenset())
    for pod in objects.pods(after, sorted(excluded)):
        yield EventDraft(regarding=pod, related=resource, reason=EXCLUDED, note=note, at=at, priority=Priority.POD)


def _about_job(known: Sequence[ObjectReference], reason: EventReason, note: str, at: float) -> Iterator[EventDraft]:
    # All other Events refer to the SupervisedJob, which has the details.
    resource = known[0] if len(known) > 1 else None
    for regarding in known:
        related = None if regarding is resource else resource
        yield EventDraft(regarding=regarding, related=related, reason=reason, note=note, at=at, priority=Priority.JOB)
