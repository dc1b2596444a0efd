"""Keeps the last groups of reclaims: the decision about each, how fast it was made, and what it cost."""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from supervisor.decide.policy import Policy
from supervisor.decide.reasons import is_drill, is_reclaim, requested
from supervisor.decide.urgency import deadline_of
from supervisor.domain.ids import Host, JobName, Source
from supervisor.domain.job import Acknowledgement, Phase, SupervisedJob
from supervisor.domain.notice import OF_PEOPLE, OPERATOR, ReclaimNotice
from supervisor.domain.order import Worker
from supervisor.observability.journal import Change, JobChanged, JobForgotten, NoticedHosts, is_stopped

MAX_GROUPS = 50

OVER = frozenset({Phase.RUNNING, Phase.SHRINKING, Phase.TIMED_OUT, Phase.FINISHED})
"""Phases in which a job is not suspended any more; one that tries to resume still is."""


class GroupOutcome(StrEnum):
    """The effect of a group of reclaims on a job."""

    SHRUNK = "shrunk"
    STOPPED = "stopped"


class GroupCause(StrEnum):
    """The cause of a decision.

    LOSS: hosts were lost without a notice. LAUNCHER: somebody has asked the launcher to end the job. UNKNOWN: an
    earlier leader has decided, and what is stored does not say why.
    """

    RECLAIM = "reclaim"
    LOSS = "loss"
    DRILL = "drill"
    DRAIN = "drain"
    PERSON = "person"
    QUEUE = "queue"
    LAUNCHER = "launcher"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedGroup:
    """A decision that newly excluded `subjects`, or stopped the job because of them. Instants are Unix seconds.

    `noticed_at` is the receipt of its first notice, `deadline` the earliest deadline of its hosts; both are None if
    workers were lost without a notice. `steps_lost` is a lower bound of the steps that the next run repeated; None if
    the run does not report steps or has not started. `workers` is the size of the run that it stopped.
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
    workers: int = 0
    forgotten: bool = False
    cause: GroupCause = GroupCause.RECLAIM

    @property
    def id(self) -> str:
        """The id, an instant with microseconds and the job: the record has the decision at that instant, too."""
        return f"{self.at:.6f}/{self.job}"

    @property
    def closed(self) -> bool:
        """Whether the group cannot change any more."""
        return self.outcome is GroupOutcome.SHRUNK or self.resumed_at is not None


def outcome_of(before: SupervisedJob, after: SupervisedJob) -> GroupOutcome | None:
    """What a change decides about a group of reclaims; None if it decides about none."""
    if is_stopped(before, after):  # It takes precedence over the hosts that it excludes.
        return GroupOutcome.STOPPED
    return GroupOutcome.SHRUNK if after.decision.exclusions - before.decision.exclusions else None


def begun(  # noqa: PLR0913, PLR0917 - a change, what it decides, and what was known then
    before: SupervisedJob,
    after: SupervisedJob,
    outcome: GroupOutcome,
    at: float,
    noticed: Mapping[Host, ReclaimNotice],
    policy: Policy,
) -> DecidedGroup:
    """Returns the group that a change at an instant (Unix seconds) decides about."""
    known = before.decision.exclusions
    hosts = after.decision.exclusions if outcome is GroupOutcome.SHRUNK else after.own_hosts.intersection(noticed)
    subjects = sorted(hosts - known)
    notices = [noticed[host] for host in subjects if host in noticed]
    return DecidedGroup(
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
        deadline=min((deadline_of(notice, policy) for notice in notices), default=None),
        workers=len(before.decision.hosts - before.decision.exclusions),
        cause=cause_of(after, outcome, {notice.source for notice in notices}),
    )


@dataclass(slots=True)
class DecidedGroups:
    """Keeps the last groups, as a listener of the journal.

    Args:
        noticed: Called at the decision about a group, and again at its acknowledgement, as deadlines drift.
        policy: Gives the deadline of a notice whose source names no time.
    """

    name = "groups"
    noticed: NoticedHosts
    policy: Policy
    _groups: deque[DecidedGroup] = field(default_factory=lambda: deque(maxlen=MAX_GROUPS))

    def all(self) -> tuple[DecidedGroup, ...]:
        """All groups, the newest first."""
        return tuple(reversed(self._groups))

    def on_change(self, change: Change) -> None:
        match change:
            case JobForgotten(before, at):
                # A later job may reuse the name, and its steps are not this one's.
                self._update(before, lambda group: replace(group, resumed_at=at))
                for index, group in enumerate(self._groups):
                    if (group.job, group.uid) == (before.name, before.uid):
                        self._groups[index] = replace(group, forgotten=True)
            case JobChanged(before, after, at) if before is not None:
                outcome = outcome_of(before, after)
                if outcome is GroupOutcome.STOPPED:
                    # Later changes belong to the new group.
                    self._update(after, lambda group: replace(group, resumed_at=at))
                if outcome is not None:
                    self._groups.append(begun(before, after, outcome, at, self.noticed(after.name), self.policy))
                self._update(after, lambda group: self._continued(group, after, at))

    def on_step(self, worker: Worker, step: int | None) -> None:
        """Records the step of a process. The first one of rank 0 in the next run shows how many steps were lost."""
        if worker.rank != 0 or step is None:
            return
        for index, group in enumerate(self._groups):
            saved = group.acknowledgement
            waits = (group.job, group.uid) == worker.job[:2] and not group.forgotten and group.steps_lost is None
            if waits and saved is not None and saved.step is not None and worker.run > saved.run:
                self._groups[index] = replace(group, steps_lost=max(0, saved.step - step))

    def _update(self, job: SupervisedJob, change: Callable[[DecidedGroup], DecidedGroup]) -> None:
        """Changes the job's open groups. A group that gets `resumed_at` is closed."""
        for index, group in enumerate(self._groups):
            if not group.closed and (group.job, group.uid) == (job.name, job.uid):
                self._groups[index] = change(group)

    def _continued(self, group: DecidedGroup, job: SupervisedJob, at: float) -> DecidedGroup:
        answer, known = job.observed.acknowledgement, group.acknowledgement
        if (
            answer is not None
            and answer != known
            # A later answer of the same stop may take a failure back.
            and (known is None or known.run == answer.run)
            and answer.run >= group.run
            and answer.generation >= group.generation
        ):
            noticed = self.noticed(job.name)
            notices = (noticed[host] for host in group.subjects if host in noticed)
            latest = min((deadline_of(notice, self.policy) for notice in notices), default=None)
            group = replace(group, acknowledgement=answer, deadline=group.deadline if latest is None else latest)
        if job.decision.phase in OVER:
            return replace(group, resumed_at=at)
        if group.suspended_at is None and job.decision.phase is Phase.SUSPENDED:
            return replace(group, suspended_at=at)
        return group


def cause_of(job: SupervisedJob, outcome: GroupOutcome, sources: Collection[Source]) -> GroupCause:
    """Finds the cause of a stop or an exclusion, in the order in which `plan` decides on stops."""
    if outcome is GroupOutcome.STOPPED:
        if job.observed.ending:
            return GroupCause.LAUNCHER
        if job.observed.request is not None:
            return GroupCause.PERSON
        if job.observed.queue:
            return GroupCause.QUEUE
    return _cause_in(sources) or GroupCause.LOSS


def stored_cause(job: SupervisedJob, outcome: GroupOutcome, sources: Collection[Source]) -> GroupCause:
    """Finds the cause of what an earlier leader has decided, as far as it is stored.

    Args:
        job: Its decision may be a later one, as long as it follows from that.
        outcome: What was decided.
        sources: Those of the notices that hold, and did so then. Most notices of a suspended job have ended.
    """
    decision, observed = job.decision, job.observed
    if outcome is GroupOutcome.STOPPED:
        if observed.ending:
            return GroupCause.LAUNCHER
        if (request := decision.request) is not None:
            # The reason of a run that was stopped for a request also tells how it stopped. Otherwise it was stopped, or
            # was being stopped, before somebody asked for that.
            is_stopped_for_it = decision.phase is Phase.STOPPING or decision.reason != requested(request)
            return GroupCause.PERSON if is_stopped_for_it else GroupCause.UNKNOWN
        if observed.queue:
            return GroupCause.QUEUE
    if is_drill(decision.reason):
        return GroupCause.DRILL
    return _cause_in(sources) or (GroupCause.RECLAIM if is_reclaim(decision.reason) else GroupCause.UNKNOWN)


def _cause_in(sources: Collection[Source]) -> GroupCause | None:
    if not sources:
        return None
    if OF_PEOPLE.issuperset(sources):
        return GroupCause.DRAIN if OPERATOR in sources else GroupCause.DRILL
    return GroupCause.RECLAIM
