"""What is to be said of a change: once on the job for each group, and on the pods that it means."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from supervisor.domain.ids import Host
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.observability.events.event import EXCLUDED, OF_JOBS, OF_NOTICES, EventDraft, ObjectReference, Priority
from supervisor.observability.journal import Change, JobChanged, NoticeChanged
from supervisor.observability.transitions import LIVE
from supervisor.store.sentences import sentence


class ReferenceResolver(Protocol):
    """The objects of the cluster behind what is known; none where there are none (any more)."""

    def notice(self, notice: ReclaimNotice) -> ObjectReference | None:
        """Its resource."""

    def job(self, job: SupervisedJob) -> Sequence[ObjectReference]:
        """Its resource, and the object that it is about."""

    def noticed(self, notice: ReclaimNotice) -> Iterable[ObjectReference]:
        """The pods of supervised jobs that a notice is about."""

    def pods(self, job: SupervisedJob, hosts: Iterable[Host]) -> Iterable[ObjectReference]:
        """Those that these hosts are."""


def drafts(change: Change, objects: ReferenceResolver) -> Iterator[EventDraft]:
    """What is worth an Event; a deadline that drifts, or a host that reports, is not."""
    match change:
        case NoticeChanged(before, after, at):
            return _of_notice(before, after, objects, at)
        case JobChanged(before, after, at):
            return _of_job(before, after, objects, at)
        case _:
            return iter(())


def _of_notice(
    before: ReclaimNotice | None, after: ReclaimNotice, objects: ReferenceResolver, at: float
) -> Iterator[EventDraft]:
    known = before.state if before is not None and before.episode == after.episode else None
    # What was over when it became known announces nothing: an old Event found at start-up is such a notice.
    if known is after.state or (known is None and after.state is not NoticeState.ACTIVE):
        return
    reason, note, notice = OF_NOTICES[after.state], sentence(after), objects.notice(after)
    for pod in objects.noticed(after):
        yield EventDraft(regarding=pod, related=notice, reason=reason, note=note, at=at, rank=Priority.POD)
    if notice is not None:
        yield EventDraft(regarding=notice, related=None, reason=reason, note=note, at=at, rank=Priority.NOTICE)


def _of_job(
    before: SupervisedJob | None, after: SupervisedJob, objects: ReferenceResolver, at: float
) -> Iterator[EventDraft]:
    if before is not None and not _is_notable(before, after):
        return
    reason, note = OF_JOBS[after.decision.phase], after.decision.reason
    known = objects.job(after)
    # The job's resource, which says everything, is what all others refer to.
    resource = known[0] if known else None
    for regarding in known:
        related = None if regarding is resource else resource
        yield EventDraft(regarding=regarding, related=related, reason=reason, note=note, at=at, rank=Priority.JOB)
    excluded = after.decision.exclusions - (before.decision.exclusions if before else frozenset())
    for pod in objects.pods(after, sorted(excluded)):
        yield EventDraft(regarding=pod, related=resource, reason=EXCLUDED, note=note, at=at, rank=Priority.POD)


def _is_notable(before: SupervisedJob, after: SupervisedJob) -> bool:
    """Where the job stands, whom a run leaves out, or how many it asks for; the sentence alone is no news."""
    old, new = before.decision, after.decision
    asked = new.growing is not None and new.growing != old.growing
    others = new.phase in LIVE and new.exclusions != old.exclusions and new.reason != old.reason
    return new.phase is not old.phase or asked or others
