"""Selects the drills that the record has, and what each of them proved. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from supervisor.domain.ids import JobName
from supervisor.domain.job import Phase
from supervisor.domain.notice import ReclaimNotice
from supervisor.observability.history import NEWLY_EXCLUDED
from supervisor.observability.page.past import Reclaim, reclaims_of
from supervisor.observability.views import HistoryEntryView, HistoryView

MAX_DRILLS = 10
"""Drills on the page: each of them is a question to the record."""

MAX_ENTRIES = 300
"""Entries of one drill that are read, and entries of notices of drills."""

AFTER_SECONDS = 600.0
"""How long after the end of a drill its jobs may take to be back."""

_ONE_DRILL_SECONDS = 10.0
"""Notices of drills that come within this time after the first one are one drill."""

_ANSWER = "Checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrilledJob:
    """What a drill did to one job; each is in seconds since the drill's first notice, None if it did not happen.

    `phase` is that of the decision: `Stopping`, or `Shrinking` of a job that went on. `answer` is what rank 0 answered.
    """

    job: JobName
    phase: str
    reason: str
    at: float
    told: float
    answered: float | None = None
    answer: str = ""
    suspended: float | None = None
    back: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """A drill of the past or the present. Instants are Unix seconds; `ended_at` is None while it goes on.

    `jobs` are those that it did something to, None if that cannot be read. With `cut`, so much happened that some may
    be missing. `is_lost`: it is over, and no record that can be read has when.
    """

    began_at: float
    ended_at: float | None
    subjects: Sequence[str]
    is_lost: bool = False
    jobs: Sequence[DrilledJob] | None = None
    cut: bool = False

    @property
    def seconds(self) -> float | None:
        """How long it took; None while it goes on."""
        return None if self.ended_at is None else self.ended_at - self.began_at

    def in_time(self, job: DrilledJob) -> bool:
        """Whether a job that was stopped answered before the drill was over."""
        return job.answered is not None and (self.seconds is None or job.answered <= self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillsContents:
    """The latest drills, the latest first. `more`: there are earlier ones."""

    drills: Sequence[Drill] = field(default_factory=tuple)
    more: bool = False


def drills_of(past: HistoryView, present: Iterable[ReclaimNotice]) -> DrillsContents:
    """Returns the drills whose notices these entries are; `present` are the notices that the leader has."""
    # One of which the beginning was not read is the last of the page before.
    notices = [each for each in reclaims_of(past.entries, present)[::-1] if each.noticed_at is not None]
    found: list[list[Reclaim]] = []
    for notice in sorted(notices, key=lambda each: each.noticed_at or 0.0):
        if found and _began(notice) - _began(found[-1][0]) <= _ONE_DRILL_SECONDS:
            found[-1].append(notice)
        else:
            found.append([notice])
    latest = [_drill(each) for each in reversed(found)]
    return DrillsContents(drills=latest[:MAX_DRILLS], more=past.cut or len(latest) > MAX_DRILLS)


def with_jobs(drill: Drill, happened: Iterable[HistoryEntryView]) -> Drill:
    """The drill with what it did to jobs, by what happened from its beginning on."""
    jobs: dict[JobName, DrilledJob] = {}
    over = set[JobName]()
    subjects = frozenset(drill.subjects)
    for entry in happened:
        kind, _, name = entry.subject.partition("/")
        job = JobName(name)
        if kind != "job" or job in over:
            continue
        known = jobs.get(job)
        if known is None:
            if entry.at >= drill.began_at and _is_decision(entry) and subjects.intersection(entry.concerns):
                jobs[job] = _told(job, entry, drill)
            continue
        jobs[job] = _continued(known, entry, entry.at - drill.began_at)
        if jobs[job].back is not None:
            over.add(job)
    return replace(drill, jobs=sorted(jobs.values(), key=lambda each: (each.at, each.job)))


def _is_decision(entry: HistoryEntryView) -> bool:
    """Whether an entry is a decision because of a drill: a job that shrinks already may first wait for more notices."""
    excludes = entry.what == Phase.SHRINKING and NEWLY_EXCLUDED in entry.text
    return entry.drill and (excludes or entry.what in (Phase.STOPPING, Phase.SUSPENDED))


def _told(job: JobName, entry: HistoryEntryView, drill: Drill) -> DrilledJob:
    seconds = entry.at - drill.began_at
    suspended = seconds if entry.what == Phase.SUSPENDED else None
    return DrilledJob(job=job, phase=entry.what, reason=entry.text, at=entry.at, told=seconds, suspended=suspended)


def _continued(known: DrilledJob, entry: HistoryEntryView, seconds: float) -> DrilledJob:
    if entry.what == _ANSWER:
        return replace(known, answered=seconds, answer=entry.text)
    if entry.what == Phase.STOPPING and known.phase == Phase.SHRINKING:
        # A drill of several notices: the last of them has left too few hosts.
        return replace(known, phase=Phase.STOPPING.value, reason=entry.text, at=entry.at, told=seconds)
    if entry.what == Phase.SUSPENDED and known.suspended is None:
        return replace(known, suspended=seconds)
    if entry.what == Phase.RUNNING:
        return replace(known, back=seconds)
    return known


def _drill(notices: Sequence[Reclaim]) -> Drill:
    ends = [each.ended_at for each in notices]
    known = [each for each in ends if each is not None]
    return Drill(
        began_at=_began(notices[0]),
        ended_at=max(known) if len(known) == len(ends) else None,
        subjects=sorted({each.subject for each in notices}),
        is_lost=any(each.is_lost for each in notices),
    )


def _began(notice: Reclaim) -> float:
    return notice.noticed_at or 0.0


def proofs(drill: Drill, job: DrilledJob) -> Mapping[str, bool]:
    """Says in sentences what a drill proved of a job, each with whether that is good."""
    if job.phase == Phase.SHRINKING:
        return {"It went on without the hosts.": True}
    if job.answered is None:
        return {"No rank answered.": False}
    if drill.is_lost:
        return {"It answered; whether in time is not known.": True}
    return {"It answered in time." if drill.in_time(job) else "It answered too late.": drill.in_time(job)}
