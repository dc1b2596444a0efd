"""Groups what happened, and hands messages to the outboxes of all targets."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.reconcile import Wakeup
from supervisor.observability.hooks import LiveState
from supervisor.observability.journal import Change, JobForgotten, is_late
from supervisor.observability.notifications import delivery
from supervisor.observability.notifications.config import NotificationConfig
from supervisor.observability.notifications.message import Choice, NotificationKind, Occurrence, messages
from supervisor.observability.notifications.occurrences import CoverageWatch, occurrences, recent, uncovered

MAX_OCCURRENCES = 2000
"""Within one moment; beyond that the oldest are dropped. 2,500 notices in a minute are 400 in ten seconds."""

_LOOK_SECONDS = 15.0
"""Interval at which coverage is checked: 4,000 workers take some milliseconds."""

ALL = "all"
"""The target under which occurrences are counted that were dropped before they became messages."""

if TYPE_CHECKING:
    from supervisor.domain.ids import JobName


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
        name: See `supervisor.observability.journal.Listener`.
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

    def on_change(self, change: Change) -> None:
        late = partial(is_late, noticed=self._live.noticed, policy=self._live.policy)
        self._put(self._marked(each) for each in occurrences(change, late))
        if isinstance(change, JobForgotten):
            self._drilled.discard(change.before.name)

    async def run(self) -> None:
        """Root task: groups what happens, and sends it to each target."""
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
        """A job that a drill has suspended is still in that drill when it resumes, though the reason is another one."""
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
