"""What is to be said of a change: once on the job for each group, and on the pods that it means."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from supervisor.domain.ids import Host
from supervisor.domain.job import SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice
from supervisor.observability.events.event import EXCLUDED, OF_JOBS, OF_NOTICES, About, EventDraft, Rank
from supervisor.observability.journal import Change, JobChanged, NoticeChanged
from supervisor.observability.transitions import LIVE
from supervisor.store.sentences import sentence


class Objects(Protocol):
    """The objects of the cluster behind what is known; none where there are none (any more)."""

    def notice(self, notice: ReclaimNotice) -> About | None:
        """Its resource."""

    def job(self, job: SupervisedJob) -> Sequence[About]:
        """Its resource, and the object that it is about."""

    def noticed(self, notice: ReclaimNotice) -> Iterable[About]:
        """The pods of supervised jobs that a notice is about."""

    def pods(self, job: SupervisedJob, hosts: Iterable[Host]) -> Iterable[About]:
        """Those that these hosts are."""


def drafts(change: Change, objects: Objects) -> Iterator[EventDraft]:
    """What is worth an Event; a deadline that drifts, or a host that reports, is not."""
    match change:
        case NoticeChanged(before, after, at):
            return _of_notice(before, after, objects, at)
        case JobChanged(before, after, at):
            return _of_job(before, after, objects, at)
        case _:
            return iter(())


def _of_notice(before: ReclaimNotice | None, after: ReclaimNotice, objects: Objects, at: float) -> Iterator[EventDraft]:
    known = before.state if before is not None and before.episode == after.episode else None
    # What was over when it became known announces nothing: an old Event found at start-up is such a notice.
    if known is after.state or (known is None and after.state is not NoticeState.ACTIVE):
        return
    word, note, notice = OF_NOTICES[after.state], sentence(after), objects.notice(after)
    for pod in objects.noticed(after):
        yield EventDraft(about=pod, related=notice, word=word, note=note, at=at, rank=Rank.POD)
    if notice is not None:
        yield EventDraft(about=notice, related=None, word=word, note=note, at=at, rank=Rank.NOTICE)


def _of_job(before: SupervisedJob | None, after: SupervisedJob, objects: Objects, at: float) -> Iterator[EventDraft]:
    if before is not None and not _is_notable(before, after):
        return
    word, note = OF_JOBS[after.decision.phase], after.decision.reason
    known = objects.job(after)
    # The job's resource, which says everything, is what all others refer to.
    resource = known[0] if known else None
    for about in known:
        related = None if about is resource else resource
        yield EventDraft(about=about, related=related, word=word, note=note, at=at, rank=Rank.JOB)
    excluded = after.decision.exclusions - (before.decision.exclusions if before else frozenset())
    for pod in objects.pods(after, sorted(excluded)):
        yield EventDraft(about=pod, related=resource, word=EXCLUDED, note=note, at=at, rank=Rank.POD)


def _is_notable(before: SupervisedJob, after: SupervisedJob) -> bool:
    """Where the job stands, whom a run leaves out, or how many it asks for; the sentence alone is no news."""
    old, new = before.decision, after.decision
    asked = new.growing is not None and new.growing != old.growing
    others = new.phase in LIVE and new.exclusions != old.exclusions and new.reason != old.reason
    return new.phase is not old.phase or asked or others
