"""Finds what is worth a notification: changes of jobs, new notices, and workers that a reclaim would not reach."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from supervisor.decide.reasons import is_drill
from supervisor.domain.ids import Host, JobId, JobName, namespace
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice, SubjectKind
from supervisor.observability.hooks import LiveState
from supervisor.observability.journal import SUSPENDED, Change, JobChanged, NoticeChanged, is_stopped, is_suspended
from supervisor.observability.notifications.message import NotificationKind, Occurrence, identifier
from supervisor.store.conditions import sentence

_MAX_NAMES = 5

IsLate = Callable[[SupervisedJob, SupervisedJob], bool]
"""Whether a change of a job shows that its STOP was not acknowledged before the deadline."""


def occurrences(change: Change, is_late: IsLate) -> Iterator[Occurrence]:
    """Finds the occurrences in a change; a drifting deadline or a report of a host is none."""
    match change:
        case NoticeChanged(before, after, at):
            return _of_notice(before, after, at)
        case JobChanged(before, after, at) if before is not None:
            return _of_job(before, after, at, is_late)
        case _:
            return iter(())


def recent(jobs: Iterable[SupervisedJob], since: float) -> Iterator[Occurrence]:
    """Finds the suspensions since an instant, which an earlier leader may have decided but not sent."""
    for job in jobs:
        at = job.decision.waiting_since
        if job.decision.phase is Phase.SUSPENDED and at is not None and at >= since:
            yield _occurrence(job, NotificationKind.SUSPENDED, job.decision.run, at)


def _of_notice(before: ReclaimNotice | None, after: ReclaimNotice, at: float) -> Iterator[Occurrence]:
    is_known = before is not None and before.episode == after.episode
    if is_known or after.state is not NoticeState.ACTIVE:
        return
    subject = after.subject
    yield Occurrence(
        id=identifier(after.id, after.episode),
        kind=NotificationKind.NOTICE,
        text=sentence(after),
        at=at,
        namespace=subject.name.partition("/")[0] if subject.kind is SubjectKind.POD else "",
        hosts=(subject.name,),
        drill=after.simulated,
    )


def _of_job(before: SupervisedJob, after: SupervisedJob, at: float, is_late: IsLate) -> Iterator[Occurrence]:
    old, new = before.decision, after.decision
    excluded = tuple(sorted(new.exclusions - old.exclusions))
    if excluded and not is_stopped(before, after):
        yield _occurrence(after, NotificationKind.SHRUNK, new.excluded_at, at, excluded)
    if is_suspended(before, after):
        yield _occurrence(after, NotificationKind.SUSPENDED, old.run, at)
    if is_late(before, after):
        yield _occurrence(after, NotificationKind.LATE_STOP, old.run, at)
    if new.phase is old.phase:
        return
    if new.phase is Phase.RUNNING and old.phase in SUSPENDED:
        yield _occurrence(after, NotificationKind.RESUMED, new.run, at)
    if new.phase is Phase.TIMED_OUT:
        yield _occurrence(after, NotificationKind.TIMED_OUT, new.run, at)
    if new.phase is Phase.FINISHED:
        yield _occurrence(after, NotificationKind.FINISHED, new.run, at)


def _occurrence(
    job: SupervisedJob, kind: NotificationKind, number: int, at: float, hosts: tuple[str, ...] = ()
) -> Occurrence:
    """Builds an occurrence; `number`, the run or generation, distinguishes it from earlier ones of its kind."""
    return Occurrence(
        id=identifier(job.uid, number, kind),
        kind=kind,
        text=job.decision.reason,
        at=at,
        namespace=namespace(job.name),
        job=job.name,
        hosts=hosts,
        drill=is_drill(job.decision.reason),
    )


def uncovered(live: LiveState, job: SupervisedJob) -> Mapping[Host, str]:
    """The workers of a job that a reclaim would not reach, and what each lacks."""
    streams = live.processes.hosts(job.id)
    lacks = {host: (live.agents.connected(node), host in streams) for host, node in live.nodes(job).items()}
    words = {(False, False): "agent and stream", (False, True): "agent", (True, False): "stream"}
    return {host: words[state] for host, state in lacks.items() if state in words}


@dataclass(slots=True)
class CoverageWatch:
    """Reports a job once when workers have been uncovered for `seconds`, and again after all were covered.

    Agents and processes of a new run, or those of a new leader, need some time to connect.
    """

    find: Callable[[SupervisedJob], Mapping[Host, str]]
    seconds: float
    _since: dict[JobId, dict[Host, float]] = field(default_factory=dict)
    _reported: set[JobId] = field(default_factory=set)

    def look(self, jobs: Mapping[JobName, SupervisedJob], now: float) -> Iterator[Occurrence]:
        for gone in self._since.keys() - {job.id for job in jobs.values()}:
            self._forget(gone)
        for job in jobs.values():
            missing = self.find(job)
            if not missing:
                self._forget(job.id)
                continue
            before = self._since.get(job.id, {})
            since = self._since[job.id] = {host: before.get(host, now) for host in missing}
            lasting = sorted(host for host, at in since.items() if now - at >= self.seconds)
            if lasting and job.id not in self._reported:
                self._reported.add(job.id)
                named = ", ".join(f"{host} ({missing[host]})" for host in lasting[:_MAX_NAMES])
                more = f" and {len(lasting) - _MAX_NAMES} more" if len(lasting) > _MAX_NAMES else ""
                yield Occurrence(
                    id=identifier(job.uid, job.observed.run, NotificationKind.UNCOVERED, *lasting),
                    kind=NotificationKind.UNCOVERED,
                    text=f"A reclaim would not reach {named}{more}: what is missing is in parentheses.",
                    at=now,
                    namespace=namespace(job.name),
                    job=job.name,
                    hosts=tuple(lasting),
                )

    def _forget(self, job: JobId) -> None:
        self._since.pop(job, None)
        self._reported.discard(job)
