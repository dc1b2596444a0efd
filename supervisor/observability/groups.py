"""The last groups of reclaims: what was decided about each, how fast, and what it cost."""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from supervisor.decide.notices import deadline_of
from supervisor.decide.policy import Policy
from supervisor.domain.directive import Worker
from supervisor.domain.ids import Host, JobName, Source
from supervisor.domain.job import Acknowledgement, Phase, SupervisedJob
from supervisor.domain.notice import ReclaimNotice
from supervisor.observability.journal import Change, JobChanged, JobForgotten
from supervisor.observability.transitions import NoticedHosts, is_stopped

MAX_GROUPS = 50

_OVER = frozenset({Phase.RUNNING, Phase.SHRINKING, Phase.TIMED_OUT, Phase.FINISHED})
"""Phases in which a job is not suspended any more; one that tries to resume still is."""


class GroupOutcome(StrEnum):
    """What a group of reclaims meant to a job."""

    SHRUNK = "shrunk"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One decision that newly excluded `subjects`, or stopped the job because of them. Instants are Unix seconds.

    `noticed_at` is the first of its notices, `deadline` the end of the first of its hosts; None where nothing was
    noticed, as when workers went without a word. `steps_lost` is the least that the next run did again; None where it
    does not say its steps, or has not begun.
    """

    job: JobName
    uid: str
    outcome: GroupOutcome
    at: float
    run: int
    generation: int
    reason: str
    sources: tuple[Source, ...]
    subjects: tuple[Host, ...]
    noticed_at: float | None
    deadline: float | None
    acknowledgement: Acknowledgement | None = None
    suspended_at: float | None = None
    resumed_at: float | None = None
    steps_lost: int | None = None
    forgotten: bool = False

    @property
    def closed(self) -> bool:
        """Nothing more will become of it."""
        return self.outcome is GroupOutcome.SHRUNK or self.resumed_at is not None


class Groups:
    """Hears of every change of a job, and keeps the last few groups.

    Args:
        noticed: Asked when a group was decided, and again when it was answered: deadlines drift.
        policy: Says when a subject goes whose source names no time.
    """

    name = "groups"

    def __init__(self, noticed: NoticedHosts, policy: Policy) -> None:
        self._noticed = noticed
        self._policy = policy
        self._groups: deque[Group] = deque(maxlen=MAX_GROUPS)

    def all(self) -> tuple[Group, ...]:
        """The newest first."""
        return tuple(reversed(self._groups))

    def on_change(self, change: Change) -> None:
        """What a decision began, and what became of an earlier one."""
        match change:
            case JobForgotten(before, at):
                self._end(before, at)
                self._groups = deque((_forgotten(group, before) for group in self._groups), maxlen=MAX_GROUPS)
            case JobChanged(before, after, at) if before is not None:
                self._decided(before, after, at)

    def on_step(self, worker: Worker, step: int | None) -> None:
        """A process has said which step it is at: rank 0's first word of the next run tells what was lost."""
        if worker.rank != 0 or step is None:
            return
        for placement, group in enumerate(self._groups):
            saved = group.acknowledgement
            waits = group.job == worker.job and not group.forgotten and group.steps_lost is None
            if waits and saved is not None and saved.step is not None and worker.run > saved.run:
                self._groups[placement] = replace(group, steps_lost=max(0, saved.step - step))

    def _decided(self, before: SupervisedJob, after: SupervisedJob, at: float) -> None:
        outcome = _outcome(before, after)
        if outcome is GroupOutcome.STOPPED:
            self._end(after, at)
        if outcome is not None:
            self._groups.append(self._begun(before, after, outcome, at))
        self._each(after, lambda group: self._continued(group, after, at))

    def _end(self, job: SupervisedJob, at: float) -> None:
        """Whatever comes now belongs to a later group, or to nobody."""
        self._each(job, lambda group: replace(group, resumed_at=at))

    def _each(self, job: SupervisedJob, change: Callable[[Group], Group]) -> None:
        for placement, group in enumerate(self._groups):
            if not group.closed and (group.job, group.uid) == (job.name, job.uid):
                self._groups[placement] = change(group)

    def _begun(self, before: SupervisedJob, after: SupervisedJob, outcome: GroupOutcome, at: float) -> Group:
        noticed = self._noticed(after.name)
        known = before.decision.exclusions
        hosts = after.decision.exclusions if outcome is GroupOutcome.SHRUNK else after.own_hosts.intersection(noticed)
        subjects = sorted(hosts - known)
        notices = [noticed[host] for host in subjects if host in noticed]
        return Group(
            job=after.name,
            uid=after.uid,
            outcome=outcome,
            at=at,
            run=after.decision.run,
            generation=after.decision.generation,
            reason=after.decision.reason,
            sources=tuple(sorted({notice.source for notice in notices})),
            subjects=tuple(subjects),
            noticed_at=min((notice.first_seen for notice in notices), default=None),
            deadline=self._first_end(notices),
        )

    def _continued(self, group: Group, job: SupervisedJob, at: float) -> Group:
        answer = job.observed.acknowledgement
        if group.acknowledgement is None and answer is not None and _answers(answer, group):
            noticed = self._noticed(job.name)
            latest = self._first_end([noticed[host] for host in group.subjects if host in noticed])
            group = replace(group, acknowledgement=answer, deadline=group.deadline if latest is None else latest)
        if job.decision.phase in _OVER:
            return replace(group, resumed_at=at)
        if group.suspended_at is None and job.decision.phase is Phase.SUSPENDED:
            return replace(group, suspended_at=at)
        return group

    def _first_end(self, notices: Collection[ReclaimNotice]) -> float | None:
        return min((deadline_of(notice, self._policy) for notice in notices), default=None)


def _outcome(before: SupervisedJob, after: SupervisedJob) -> GroupOutcome | None:
    """What a change newly did; a stop counts for more than the hosts that it leaves out."""
    if is_stopped(before, after):
        return GroupOutcome.STOPPED
    return GroupOutcome.SHRUNK if after.decision.exclusions - before.decision.exclusions else None


def _answers(answer: Acknowledgement, group: Group) -> bool:
    return answer.run >= group.run and answer.generation >= group.generation


def _forgotten(group: Group, job: SupervisedJob) -> Group:
    """A later job may have the name, and says nothing of this one's steps."""
    return replace(group, forgotten=True) if (group.job, group.uid) == (job.name, job.uid) else group
