"""Decides which Events a change deserves: one on the job for each group, and one on each affected pod."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Protocol

from supervisor.domain.ids import Host
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.observability.events.event import (
    EXCLUDED,
    IGNORED,
    OF_JOBS,
    OF_NOTICES,
    RELEASED,
    UNSAVED,
    EventDraft,
    EventReason,
    ObjectReference,
    Priority,
)
from supervisor.observability.journal import Change, JobChanged, JobForgotten, NoticeChanged
from supervisor.observability.transitions import LIVE, is_unsaved
from supervisor.store.conditions import sentence

_RELEASED = (
    "The supervisor does not look after the job any more: the job does not opt in, or a person has suspended it."
)


class ReferenceResolver(Protocol):
    """Finds the Kubernetes objects of notices and jobs that still exist."""

    def notice(self, notice: ReclaimNotice) -> ObjectReference | None:
        """The ReclaimNotice."""

    def job(self, job: SupervisedJob) -> Sequence[ObjectReference]:
        """The SupervisedJob, followed by the object of the job's kind."""

    def released(self, job: SupervisedJob) -> Sequence[ObjectReference]:
        """The object of the job's kind if the supervisor has let it go: it is there and does not opt in any more."""

    def noticed(self, notice: ReclaimNotice) -> Iterable[ObjectReference]:
        """The pods of supervised jobs that a notice affects."""

    def pods(self, job: SupervisedJob, hosts: Iterable[Host]) -> Iterable[ObjectReference]:
        """The pods of these hosts of a job."""


def drafts(change: Change, objects: ReferenceResolver) -> Iterator[EventDraft]:
    """The Events for a change; a drifting deadline or a report of a host deserves none."""
    match change:
        case NoticeChanged(before, after, at):
            return _of_notice(before, after, objects, at)
        case JobChanged(before, after, at):
            return chain(_of_job(before, after, objects, at), _of_ignored(before, after, objects, at))
        case JobForgotten(before, at):
            return _of_release(before, objects, at)
        case _:
            return iter(())


def _of_notice(
    before: ReclaimNotice | None, after: ReclaimNotice, objects: ReferenceResolver, at: float
) -> Iterator[EventDraft]:
    known = before if before is not None and before.episode == after.episode else None
    if known is not None and (known.state, known.notice_class) == (after.state, after.notice_class):
        return
    # A notice that had ended when it became known, such as one from an old Event found at start-up, announces nothing.
    if known is None and after.state is not NoticeState.ACTIVE:
        return
    reason, note, notice = OF_NOTICES[after.state], sentence(after), objects.notice(after)
    for pod in objects.noticed(after):
        yield EventDraft(regarding=pod, related=notice, reason=reason, note=note, at=at, priority=Priority.POD)
    if notice is not None:
        yield EventDraft(regarding=notice, related=None, reason=reason, note=note, at=at, priority=Priority.NOTICE)


def _of_job(
    before: SupervisedJob | None, after: SupervisedJob, objects: ReferenceResolver, at: float
) -> Iterator[EventDraft]:
    if before is not None and not _is_notable(before, after):
        return
    reason, note = OF_JOBS[after.decision.phase], after.decision.reason
    if after.decision.phase is Phase.SUSPENDED and before is not None and is_unsaved(before, after):
        reason = UNSAVED
    known = objects.job(after)
    resource = known[0] if known else None
    yield from _about_job(known, reason, note, at)
    excluded = after.decision.exclusions - (before.decision.exclusions if before else frozenset())
    for pod in objects.pods(after, sorted(excluded)):
        yield EventDraft(regarding=pod, related=resource, reason=EXCLUDED, note=note, at=at, priority=Priority.POD)


def _of_ignored(
    before: SupervisedJob | None, after: SupervisedJob, objects: ReferenceResolver, at: float
) -> Iterator[EventDraft]:
    """One for all requests of the job that are ignored from now on."""
    known = frozenset[str]() if before is None else frozenset(before.spec.ignored)
    if note := " ".join(why for why in after.spec.ignored if why not in known):
        yield from _about_job(objects.job(after), IGNORED, note, at)


def _of_release(before: SupervisedJob, objects: ReferenceResolver, at: float) -> Iterator[EventDraft]:
    """The job itself remains. One that was only shown, but not supervised, is not let go."""
    if not before.over and not before.spec.refused:
        yield from _about_job(objects.released(before), RELEASED, _RELEASED, at)


def _about_job(known: Sequence[ObjectReference], reason: EventReason, note: str, at: float) -> Iterator[EventDraft]:
    # All other Events refer to the SupervisedJob, which has the details.
    resource = known[0] if len(known) > 1 else None
    for regarding in known:
        related = None if regarding is resource else resource
        yield EventDraft(regarding=regarding, related=related, reason=reason, note=note, at=at, priority=Priority.JOB)


def _is_notable(before: SupervisedJob, after: SupervisedJob) -> bool:
    """Whether the phase, the exclusions, the growth or the checkpoint changed; a reason alone deserves no Event."""
    old, new = before.decision, after.decision
    asked = new.growing is not None and new.growing != old.growing
    others = new.phase in LIVE and new.exclusions != old.exclusions and new.reason != old.reason
    saves = new.checkpoint is not None and new.checkpoint != old.checkpoint
    return new.phase is not old.phase or asked or others or saves
