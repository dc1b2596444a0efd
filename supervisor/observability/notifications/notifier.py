"""Collects what happened, groups it, and hands messages to the outboxes of all targets."""

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
from supervisor.observability.journal import Change, JobForgotten
from supervisor.observability.notifications.composing import messages
from supervisor.observability.notifications.config import Config
from supervisor.observability.notifications.coverage import CoverageWatch, uncovered
from supervisor.observability.notifications.delivery import Outcome, Poster
from supervisor.observability.notifications.message import Happening, Kind
from supervisor.observability.notifications.outbox import Limits, Outbox, Outcomes
from supervisor.observability.notifications.rules import happenings, recent
from supervisor.observability.transitions import is_late

MAX_HAPPENINGS = 2000
"""Happenings of one moment; beyond that the oldest are dropped. 2,500 notices in a minute are 400 in ten seconds."""

_LOOK_SECONDS = 15.0
"""Interval at which coverage is checked: 4,000 workers take some milliseconds."""

ALL = "all"
"""The target under which happenings are counted that were dropped before they became messages."""

if TYPE_CHECKING:
    from supervisor.domain.ids import JobName


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The settings of all targets, see `supervisor.settings`."""

    group_seconds: float
    timeout_seconds: float
    uncovered_seconds: float
    proxy: str = ""
    limits: Limits = Limits()  # noqa: RUF009 - it is frozen

    @property
    def look_seconds(self) -> float:
        """The interval of looks at the coverage."""
        return min(_LOOK_SECONDS, max(0.05, self.uncovered_seconds))


class Notifications:
    """A listener of the journal, and the root task that sends.

    Args:
        config: The targets.
        timing: Delays and limits.
        live: The state of the leader. It also has the counts of messages by target and outcome.
        may_act: Whether this supervisor certainly leads.
        clock: For instants and pauses.
        bulkhead: Keeps what nobody foresaw with its target.

    Attributes:
        name: See `supervisor.observability.journal.Listener`.
        outcomes: Counts messages by target and outcome.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - documented above
        self,
        config: Config,
        timing: Timing,
        live: LiveState,
        may_act: Callable[[], bool],
        clock: Clock,
        bulkhead: Bulkhead,
    ) -> None:
        self._bulkhead = bulkhead
        self.name = "notifications"
        self.outcomes: Outcomes = live.notified
        self._config = config
        self._timing = timing
        self._live = live
        self._clock = clock
        self._outboxes = [
            (target.choice, Outbox(target, self.outcomes, may_act, clock, timing.limits, bulkhead))
            for target in config.targets
        ]
        self._pending: deque[Happening] = deque()
        self._drilled: set[JobName] = set()
        self._wakeup = Wakeup()
        self._coverage: CoverageWatch | None = None
        if any(Kind.UNCOVERED in target.kinds for target in config.targets):
            self._coverage = CoverageWatch(partial(uncovered, live), timing.uncovered_seconds)
        # What an earlier leader decided a moment ago may still have waited for its group to be complete.
        since = live.now() - timing.group_seconds - timing.timeout_seconds
        self._put(recent(live.snapshot().jobs.values(), since))

    def on_change(self, change: Change) -> None:
        late = partial(is_late, noticed=self._live.noticed, policy=self._live.policy)
        self._put(self._marked(each) for each in happenings(change, late))
        if isinstance(change, JobForgotten):
            self._drilled.discard(change.before.name)

    async def run(self) -> None:
        """Root task: groups what happens, and sends it to each target."""
        poster = Poster.open(self._timing.timeout_seconds, self._timing.proxy)
        async with poster.session, asyncio.TaskGroup() as group:
            for _, outbox in self._outboxes:
                group.create_task(outbox.run(poster))
            while True:
                await self._wakeup.wait(self._timing.look_seconds)
                if self._pending:
                    await asyncio.sleep(self._timing.group_seconds)
                self._tell()

    def _tell(self) -> None:
        with self._bulkhead.guard("notifications", "coverage"):
            self._look()
        told = tuple(self._pending)
        self._pending.clear()
        for choice, outbox in self._outboxes:
            with self._bulkhead.guard("notifications", outbox.target, retried=False):
                for message in messages(told, choice, self._config.origin):
                    outbox.put(message)

    def _look(self) -> None:
        if self._coverage is not None:
            self._put(self._coverage.look(self._live.snapshot().jobs, self._clock.now()))

    def _put(self, found: Iterable[Happening]) -> None:
        for each in found:
            self._pending.append(each)
            if len(self._pending) > MAX_HAPPENINGS:
                self._pending.popleft()
                self.outcomes[ALL, Outcome.DROPPED] += 1
            self._wakeup.set()

    def _marked(self, happening: Happening) -> Happening:
        """A job that a drill has suspended is still in that drill when it resumes, though the reason is another one."""
        if happening.job is None:
            return happening
        if happening.drill:
            self._drilled.add(happening.job)
        elif happening.kind is Kind.RESUMED and happening.job in self._drilled:
            self._drilled.discard(happening.job)
            return replace(happening, drill=True)
        elif happening.kind is Kind.SUSPENDED:
            self._drilled.discard(happening.job)
        return happening
