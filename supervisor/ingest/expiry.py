"""Ends notices whose deadline has passed: they become gone or expired."""

import math
from collections.abc import Callable, Container

import structlog

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from servicekit.faults import Fault, RetryPolicy
from servicekit.reconcile import Wakeup, reconcile
from supervisor.decide.notices import Presence, end_if_due, ends_at, silence_grace
from supervisor.decide.policy import Policy
from supervisor.domain.ids import Host, NoticeId
from supervisor.domain.notice import NoticeState, ReclaimNotice, SubjectKind
from supervisor.failpoints import At
from supervisor.ingest.agent_registry import AgentRegistry
from supervisor.store.interface import Store, StoreUnavailableError

_RETRY_SECONDS = 1.0

_log = structlog.get_logger()


class Expiry:
    """Ends the notices whose time has come.

    Args:
        store: The store of the notices.
        agents: The agents, which show that their nodes still exist.
        is_there: Whether a notice's subject exists; None if only an agent can know.
        policy: Gives the times at which notices end.
        clock: The supervisor's clock.
        unconfirmed: Notices that agents announce again but that cannot be stored yet; they do not end.
        bulkhead: Keeps what nobody foresaw with its notice.
        wakeup: Set whenever the store has changed, or a subject comes or goes.
    """

    def __init__(  # noqa: PLR0913 - documented above
        self,
        store: Store,
        agents: AgentRegistry,
        is_there: Callable[[ReclaimNotice], bool | None],
        policy: Policy,
        clock: Clock,
        *,
        bulkhead: Bulkhead,
        unconfirmed: Container[NoticeId] = frozenset(),
        wakeup: Wakeup | None = None,
    ) -> None:
        self._store = store
        self._agents = agents
        self._is_there = is_there
        self._policy = policy
        self._clock = clock
        self._bulkhead = bulkhead
        self._unconfirmed = unconfirmed
        self._wakeup = wakeup or Wakeup()

    async def run(self) -> None:
        """Root task: ends notices when they are due."""
        fault = Fault("store", self._clock)
        retry = RetryPolicy(
            errors=StoreUnavailableError, fault=fault, first_seconds=_RETRY_SECONDS, max_seconds=_RETRY_SECONDS
        )
        await reconcile("expiry", self.once, self._bulkhead, wakeup=self._wakeup, retry=retry)

    async def once(self) -> float | None:
        """Ends all notices that are due; returns the seconds until the next one is due, None if there is none."""
        now = self._clock.now()
        active = [each for each in self._store.snapshot().notices.values() if each.state is NoticeState.ACTIVE]
        pauses = [await self._guarded(notice, now) for notice in active]
        soonest = min(pauses, default=math.inf)
        return None if soonest == math.inf else soonest  # A change of what keeps a notice from ending sets the wakeup.

    async def _guarded(self, notice: ReclaimNotice, now: float) -> float:
        """Ends a notice if it is due; returns the seconds until it is, infinity if time alone does not end it."""
        if pause := self._bulkhead.pause("expiry", notice.id):
            return pause
        with self._bulkhead.guard("expiry", notice.id, passes=StoreUnavailableError) as attempt:
            at = self._due(notice)
            if at > now:
                return at - now

            def change(known: ReclaimNotice | None) -> ReclaimNotice | None:
                now = self._clock.now()
                if known is None or self._due(known) > now:
                    return known
                return end_if_due(known, self._presence(known)[0], now, self._policy)

            failpoint(At.NOTICE_AGEING)
            settled = await self._store.put_notice(notice.id, change)
            failpoint(At.NOTICE_AGED)
            if settled is not None and settled.state is not notice.state:
                _log.info("notice.ended", notice=settled.id, subject=settled.subject.name, state=settled.state)
        return math.inf if attempt.retry_in is None else attempt.retry_in

    def _due(self, notice: ReclaimNotice) -> float:
        """The instant at which an active notice ends.

        The grace time covers agents that lost their stream a moment ago, and agents that just connected and may still
        announce the subject again.
        """
        if notice.id in self._unconfirmed:
            return math.inf
        presence, since = self._presence(notice)
        return max(ends_at(notice, presence, self._policy), since + silence_grace(notice, self._policy))

    def _presence(self, notice: ReclaimNotice) -> tuple[Presence, float]:
        """The presence of the subject, and the instant since when it is known."""
        if notice.simulated:
            return Presence.PRESENT, 0.0  # The end of a drill does not depend on its subject.
        there = self._is_there(notice)
        if notice.drains:
            uid = self._agents.uids.get(Host(notice.subject.name), notice.subject.uid)
            is_gone = there is False or (there is None and uid != notice.subject.uid)
            return (Presence.GONE if is_gone else Presence.PRESENT), 0.0
        if there is not None:
            return (Presence.PRESENT if there else Presence.GONE), 0.0
        if notice.subject.kind is SubjectKind.POD:
            # A connected agent proves that its node exists, but proves nothing about a pod.
            return Presence.SILENT, 0.0
        node = Host(notice.subject.name)
        silent = self._agents.silent_since(node)
        if silent is not None:
            return Presence.SILENT, silent
        return Presence.PRESENT, self._agents.synced.get(node, math.inf)
