"""What of a view a page has room for, the most pressing first, and the sentence above it all."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf

from supervisor.domain.ids import Host, JobName, Source
from supervisor.domain.job import Phase
from supervisor.domain.notice import NoticeState, SubjectKind
from supervisor.record.values import JobView, NoticeView, View

MOST_ROWS = 100
"""Of each table: with 100 notices, jobs and workers the page has some 100 KB."""

_PRESSING = (Phase.STOPPING, Phase.SHRINKING, Phase.RESUMING, Phase.SUSPENDED, Phase.WAITING, Phase.TIMED_OUT)
"""The phases that people look for first; the others are as it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reclaim:
    """One that is announced; `unconfirmed` ones are not durable yet."""

    kind: SubjectKind
    subject: str
    source: Source
    seconds_left: float | None
    age_seconds: float
    jobs: Sequence[JobName]
    message: str
    simulated: bool
    unconfirmed: bool


@dataclass(frozen=True, slots=True)
class Uncovered:
    """A worker that a reclaim would not reach, and what is missing for it."""

    host: Host
    job: JobName
    missing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What is on the page beside the view itself; `more_…` are left out."""

    summary: str
    trouble: bool
    reclaims: Sequence[Reclaim]
    more_reclaims: int
    jobs: Sequence[JobView]
    more_jobs: int
    uncovered: Sequence[Uncovered]
    more_uncovered: int


def contents(view: View) -> Contents:
    """What to show of it."""
    reclaims, jobs, uncovered = _reclaims(view), sorted(view.jobs, key=_order), list(_uncovered(view.jobs))
    return Contents(
        summary=summary(view, len(reclaims), len(uncovered)),
        trouble=bool(reclaims or uncovered) or any(job.phase in _PRESSING for job in jobs),
        reclaims=reclaims[:MOST_ROWS],
        more_reclaims=max(0, len(reclaims) - MOST_ROWS),
        jobs=jobs[:MOST_ROWS],
        more_jobs=max(0, len(jobs) - MOST_ROWS),
        uncovered=uncovered[:MOST_ROWS],
        more_uncovered=max(0, len(uncovered) - MOST_ROWS),
    )


def summary(view: View, reclaims: int, uncovered: int) -> str:
    """One sentence or two, without a number that changes with the time alone: it is read aloud when it changes."""
    parts = [_count(reclaims, "reclaim under way", "reclaims under way") if reclaims else "Nothing is being reclaimed"]
    for phase in (*_PRESSING, Phase.RUNNING):
        jobs = sum(job.phase is phase for job in view.jobs)
        if jobs:
            parts.append(f"{_count(jobs, 'job', 'jobs')} {phase}")
    missing = f"{_count(uncovered, 'worker is', 'workers are')} not covered"
    parts.append(missing if uncovered else "every worker is covered")
    return ", ".join(parts) + "."


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def _reclaims(view: View) -> list[Reclaim]:
    durable = [_reclaim(each, unconfirmed=False) for each in view.notices if each.state is NoticeState.ACTIVE]
    waiting = [_reclaim(each, unconfirmed=True) for each in view.unconfirmed]
    return sorted(
        [*durable, *waiting], key=lambda each: (inf if each.seconds_left is None else each.seconds_left, each.subject)
    )


def _reclaim(notice: NoticeView, *, unconfirmed: bool) -> Reclaim:
    return Reclaim(
        kind=notice.kind,
        subject=notice.subject,
        source=notice.source,
        seconds_left=notice.seconds_left,
        age_seconds=notice.age_seconds,
        jobs=notice.jobs,
        message=notice.message,
        simulated=notice.simulated,
        unconfirmed=unconfirmed,
    )


def _order(job: JobView) -> tuple[int, int, str]:
    over = job.phase is Phase.FINISHED
    return (_PRESSING.index(job.phase) if job.phase in _PRESSING else len(_PRESSING), over, job.job)


def _uncovered(jobs: Iterable[JobView]) -> Iterator[Uncovered]:
    for job in jobs:
        for state in job.host_states:
            if state.uncovered:
                missing = [name for name, there in (("agent", state.agent), ("stream", state.stream)) if not there]
                yield Uncovered(state.host, job.job, " and ".join(missing))
