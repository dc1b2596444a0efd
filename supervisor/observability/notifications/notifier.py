"""Finds occurrences for notifications, groups them, and hands messages to the outboxes of all targets."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.reconcile import Wakeup
from supervisor.decide.reasons import is_drill
from supervisor.domain.ids import Host, JobId, JobName, namespace
from supervisor.domain.job import Phase, SupervisedJob
from supervisor.domain.notice import NoticeState, ReclaimNotice, SubjectKind
from supervisor.observability import journal
from supervisor.observability.hooks import LiveState
from supervisor.observability.notifications import delivery
from supervisor.observability.notifications.config import NotificationConfig
from supervisor.observability.notifications.message import Choice, NotificationKind, Occurrence, identifier, messages
from supervisor.store.conditions import sentence

MAX_OCCURRENCES = 2000
"""Occurrences of one moment that are kept; beyond that the oldest are dropped.

2,500 notices in a minute are 400 in ten seconds.
"""

_LOOK_SECONDS = 15.0
"""Interval at which coverage is checked: 4,000 workers take some milliseconds."""

ALL = "all"
"""The target under which occurrences are counted that were dropped before they became messages."""

_MAX_NAMES = 5

IsLate = Callable[[SupervisedJob, SupervisedJob], bool]
"""Whether a change of a job shows that its STOP was not acknowledged before the deadline."""


def occurrences(change: journal.Change, is_late: IsLate) -> Iterator[Occurrence]:
    """Finds the occurrences in a change; a drifting deadline or a report of a host is none."""
    match change:
        case journal.NoticeChanged(before, after, at):
            return _of_notice(before, after, at)
        case journal.JobChanged(before, after, at) if before is not None:
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
    if excluded and not journal.is_stopped(before, after):
        yield _occurrence(after, NotificationKind.SHRUNK, new.excluded_at, at, excluded)
    if journal.is_suspended(before, after):
        yield _occurrence(after, NotificationKind.SUSPENDED, old.run, at)
    if is_late(before, after):
        yield _occurrence(after, NotificationKind.LATE_STOP, old.run, at)
    if new.phase is old.phase:
        return
    if new.phase is Phase.RUNNING and old.phase in journal.SUSPENDED:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationTiming:
    """The settings of all targets, see `supervisor.settings`."""

    group_seconds: float
    timeout_seconds: float
    uncovered_seconds: float
    proxy: str = ""
    limits: delivery.OutboxLimits = delivery.OutboxLimits()  # noqa: RUF009 - it is frozen


class Notifications:
    """Listens to the journal, and sends messages in a root task.

    Args:
        config: The targets.
        timing: Delays and limits.
        live: The state of the leader. It also has the counts of messages by target and outcome.
        may_act: Whether this supervisor certainly leads.
        clock: For instants and pauses.
        bulkhead: Isolates unexpected exceptions of one target.

    Attributes:
        name: See `supervisor.observability.journal.ChangeListener`.
        outcomes: Counts messages by target and outcome.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - documented above
        self,
        config: NotificationConfig,
        timing: NotificationTiming,
        live: LiveState,
        may_act: Callable[[], bool],
        clock: Clock,
        bulkhead: Bulkhead,
    ) -> None:
        self._bulkhead = bulkhead
        self.name = "notifications"
        self.outcomes: delivery.Outcomes = live.notified
        self._config = config
        self._timing = timing
        self._live = live
        self._clock = clock
        self._outboxes = [
            (
                Choice(frozenset(target.kinds), frozenset(target.namespaces)),
                delivery.NotificationOutbox(target, self.outcomes, may_act, clock, timing.limits, bulkhead),
            )
            for target in config.targets
        ]
        self._pending: deque[Occurrence] = deque()
        self._drilled: set[JobName] = set()
        self._wakeup = Wakeup()
        self._coverage: CoverageWatch | None = None
        if any(NotificationKind.UNCOVERED in target.kinds for target in config.targets):
            self._coverage = CoverageWatch(partial(uncovered, live), timing.uncovered_seconds)
        # What an earlier leader decided a moment ago may still have waited for its group to be complete.
        since = live.now() - timing.group_seconds - timing.timeout_seconds
        self._put(recent(live.snapshot().jobs.values(), since))

    def on_change(self, change: journal.Change) -> None:
        late = partial(journal.is_late, noticed=self._live.noticed, policy=self._live.policy)
        self._put(self._marked(each) for each in occurrences(change, late))
        if isinstance(change, journal.JobForgotten):
            self._drilled.discard(change.before.name)

    async def run(self) -> None:
        """Root task: groups occurrences, and sends them to each target."""
        poster = delivery.Poster.open(self._timing.timeout_seconds, self._timing.proxy)
        async with poster.session, asyncio.TaskGroup() as group:
            for _, outbox in self._outboxes:
                group.create_task(outbox.run(poster))
            while True:
                await self._wakeup.wait(min(_LOOK_SECONDS, max(0.05, self._timing.uncovered_seconds)))
                if self._pending:
                    await asyncio.sleep(self._timing.group_seconds)
                self._hand_over()

    def _hand_over(self) -> None:
        if self._coverage is not None:
            with self._bulkhead.guard("notifications", "coverage"):
                self._put(self._coverage.look(self._live.snapshot().jobs, self._clock.now()))
        pending = tuple(self._pending)
        self._pending.clear()
        for choice, outbox in self._outboxes:
            with self._bulkhead.guard("notifications", outbox.target, retried=False):
                for message in messages(pending, choice, self._config.origin):
                    outbox.put(message)

    def _put(self, found: Iterable[Occurrence]) -> None:
        for each in found:
            self._pending.append(each)
            if len(self._pending) > MAX_OCCURRENCES:
                self._pending.popleft()
                self.outcomes[ALL, delivery.DeliveryOutcome.DROPPED] += 1
            self._wakeup.set()

    def _marked(self, occurrence: Occurrence) -> Occurrence:
        """Marks an occurrence as part of a drill.

        A job that a drill has suspended is still in it when it resumes, though with another reason.
        """
        if occurrence.job is None:
            return occurrence
        if occurrence.drill:
            self._drilled.add(occurrence.job)
        elif occurrence.kind is NotificationKind.RESUMED and occurrence.job in self._drilled:
            self._drilled.discard(occurrence.job)
            return replace(occurrence, drill=True)
        elif occurrence.kind is NotificationKind.SUSPENDED:
            self._drilled.discard(occurrence.job)
        return occurrence
