"""Decides what a change is worth telling. Pure."""

from collections.abc import Callable, Iterable, Iterator

from supervisor.decide.reasons import is_drill
from supervisor.domain.ids import namespace
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice, SubjectKind
from supervisor.observability.journal import Change, JobChanged, NoticeChanged
from supervisor.observability.notifications.message import Happening, Kind, identifier
from supervisor.observability.transitions import SUSPENDED, is_stopped, is_suspended
from supervisor.store.conditions import sentence

IsLate = Callable[[SupervisedJob, SupervisedJob], bool]
"""Whether a change of a job shows that its STOP was not acknowledged before the deadline."""


def happenings(change: Change, is_late: IsLate) -> Iterator[Happening]:
    """What happened by a change; a drifting deadline or a report of a host is nothing to tell."""
    match change:
        case NoticeChanged(before, after, at):
            return _of_notice(before, after, at)
        case JobChanged(before, after, at) if before is not None:
            return _of_job(before, after, at, is_late)
        case _:
            return iter(())


def recent(jobs: Iterable[SupervisedJob], since: float) -> Iterator[Happening]:
    """The suspensions since an instant, which an earlier leader may have decided and not told."""
    for job in jobs:
        at = job.decision.waiting_since
        if job.decision.phase is Phase.SUSPENDED and at is not None and at >= since:
            yield _happening(job, Kind.SUSPENDED, job.decision.run, at)


def _of_notice(before: ReclaimNotice | None, after: ReclaimNotice, at: float) -> Iterator[Happening]:
    is_known = before is not None and before.episode == after.episode
    if is_known or after.state is not NoticeState.ACTIVE:
        return
    subject = after.subject
    yield Happening(
        id=identifier(after.id, after.episode),
        kind=Kind.NOTICE,
        text=sentence(after),
        at=at,
        namespace=subject.name.partition("/")[0] if subject.kind is SubjectKind.POD else "",
        hosts=(subject.name,),
        drill=after.simulated,
    )


def _of_job(before: SupervisedJob, after: SupervisedJob, at: float, is_late: IsLate) -> Iterator[Happening]:
    old, new = before.decision, after.decision
    excluded = tuple(sorted(new.exclusions - old.exclusions))
    if excluded and not is_stopped(before, after):
        yield _happening(after, Kind.SHRUNK, new.excluded_at, at, excluded)
    if is_suspended(before, after):
        yield _happening(after, Kind.SUSPENDED, old.run, at)
    if is_late(before, after):
        yield _happening(after, Kind.LATE_STOP, old.run, at)
    if new.phase is old.phase:
        return
    if new.phase is Phase.RUNNING and old.phase in SUSPENDED:
        yield _happening(after, Kind.RESUMED, new.run, at)
    if new.phase is Phase.TIMED_OUT:
        yield _happening(after, Kind.TIMED_OUT, new.run, at)
    if new.phase is Phase.FINISHED:
        yield _happening(after, Kind.FINISHED, new.run, at)


def _happening(job: SupervisedJob, kind: Kind, number: int, at: float, hosts: tuple[str, ...] = ()) -> Happening:
    """`number` tells it from an earlier one of its kind: the run, or the generation of the exclusions."""
    return Happening(
        id=identifier(job.uid, number, kind),
        kind=kind,
        text=job.decision.reason,
        at=at,
        namespace=namespace(job.name),
        job=job.name,
        hosts=hosts,
        drill=is_drill(job.decision.reason),
    )
