"""Polls one source, once a second, and puts reports and the source's state into the outbox."""

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import replace

import structlog

from node_agent import tracking
from node_agent.failpoints import At
from node_agent.identity import ThisNode
from node_agent.notices import NoticeClass, NoticeReport, SourceName, SourceState
from node_agent.outbox import Outbox, OutboxFull
from node_agent.sources import Answer, NodeIdentity, Noticed, Source, SourceUnavailable
from node_agent.spot import ALWAYS, Spot
from node_agent.watchdog import Watchdog
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from servicekit.faults import Fault

# Seconds for one poll: a source that hangs must not delay the polls after it.
POLL_LIMIT = 1.0
# The period varies downwards only, so that the promised maximum between two polls holds.
_JITTER = 0.1

OnPoll = Callable[[SourceName, SourceState, float | None], None]
"""A hook for metrics: the source, the result of a poll, and its seconds; None where the source was not asked."""


def ignore_poll(_source: SourceName, _result: SourceState, _seconds: float | None) -> None:
    """Does nothing: an `OnPoll` for agents without metrics."""


class Poller:
    """Polls one source, never twice at once.

    Args:
        source: The source.
        node: The node that the answers are about. The source is first asked for its uid.
        outbox: Takes reports and the source's state.
        clock: Monotonic instants.
        period: Seconds between the starts of two polls.
        bulkhead: Keeps what nobody foresaw with this source.
        spot: While the node is not spot, the source is not polled.
        max_lead: Seconds; a sudden reclaim that is announced further ahead counts as unknown until it is nearer.
        on_poll: Called after each poll.
    """

    def __init__(  # noqa: PLR0913 - half of them have defaults
        self,
        source: Source,
        node: ThisNode,
        outbox: Outbox,
        clock: Clock,
        period: float,
        *,
        bulkhead: Bulkhead,
        spot: Spot = ALWAYS,
        max_lead: float = math.inf,
        on_poll: OnPoll = ignore_poll,
    ) -> None:
        self._source = source
        self._node = node
        self._outbox = outbox
        self._clock = clock
        self._period = period
        self._bulkhead = bulkhead
        self._spot = spot
        self._max_lead = max_lead
        self._on_poll = on_poll
        self._identified = False
        self._random = random.Random()  # noqa: S311 - spreads load, keeps no secret
        self._fault = Fault(f"source {source.name}", clock)
        self._overflow = Fault(f"outbox for source {source.name}", clock)
        self.watchdog = Watchdog(clock)
        self.tracked = tracking.start(source.name)
        outbox.set_status(self.tracked.status)

    @property
    def source(self) -> SourceName:
        return self._source.name

    async def run(self) -> None:
        """Root task: polls. The first poll waits a moment for the answer whether the node is spot."""
        await self._spot.wait_known()
        while True:
            started = self._clock.monotonic()
            self.watchdog.feed(POLL_LIMIT + self._period)
            # Tried again with the next poll: each notice is worth a poll a second.
            with self._bulkhead.guard("source", self.source) as attempt:
                await self.once()
            if attempt.failed:
                self._handle(tracking.Unknown("internal error, see the agent's log"))
            period = self._period * self._random.uniform(1.0 - _JITTER, 1.0)
            await asyncio.sleep(max(0.0, started + period - self._clock.monotonic()))

    async def once(self) -> None:
        """Polls once and handles the answer."""
        if self._spot.not_spot_reason:
            self._fault.recovered()
            self._handle(tracking.Skipped(f"the node is not spot: {self._spot.not_spot_reason}"))
            self._on_poll(self.source, SourceState.NOT_SPOT, None)
            return
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout(POLL_LIMIT):
                answer: Answer | tracking.Unknown = await self._ask()
            self._fault.recovered()
        except (SourceUnavailable, TimeoutError) as error:
            answer = tracking.Unknown(str(error) or f"no answer within {POLL_LIMIT:g} s")
            self._fault.failed(answer.reason)
        seconds = self._clock.monotonic() - began
        self._handle(answer)
        self._on_poll(self.source, self.tracked.status.state, seconds)

    async def _ask(self) -> Answer:
        """Asks for the node's identity until it is known, then for announcements.

        A service that cannot tell the machine's id is not the metadata service, so its 404 does not mean "clear".
        """
        if not self._identified:
            identity = await self._source.identify()
            if identity is None:
                self._node.describe(NodeIdentity(""))
            else:
                self._node.resolve(identity)
            self._identified = True
        if self._node.subject is None:
            raise SourceUnavailable("the node's uid is not known yet")
        answer = await self._source.poll()
        if isinstance(answer, Noticed) and self._is_too_far_ahead(answer):
            at = f"{answer.announced:%Y-%m-%dT%H:%M:%SZ}" if answer.announced else "an instant"
            raise SourceUnavailable(f"announces a reclaim at {at}, more than {self._max_lead:g} s ahead")
        return answer

    def _is_too_far_ahead(self, answer: Noticed) -> bool:
        sudden = answer.notice_class is NoticeClass.SUDDEN
        return sudden and answer.seconds_left is not None and answer.seconds_left > self._max_lead

    def _handle(self, answer: Answer | tracking.Unknown | tracking.Skipped) -> None:
        failpoint(At.SOURCE_ANSWERED)
        before = self.tracked
        self.tracked, report = tracking.step(before, answer, self._node.subject, self._clock.monotonic())
        if report is not None and not self._put(report):
            # Forgets the report, so that the next poll makes it again.
            self.tracked = replace(self.tracked, reported=before.reported)
        self._outbox.set_status(self.tracked.status)

    def _put(self, report: NoticeReport) -> bool:
        try:
            self._outbox.put(report)
        except OutboxFull as full:
            self._overflow.failed(str(full))
            return False
        failpoint(At.REPORT_KEPT)
        self._overflow.recovered()
        self._record(report)
        return True

    def _record(self, report: NoticeReport) -> None:
        left = None if report.deadline is None else round(report.deadline - self._clock.monotonic(), 1)
        structlog.get_logger().info(
            "node.noticed",
            notice=report.id,
            node=report.subject.name,
            announcement=report.announcement.name.lower(),
            seconds_left=left,
            notice_class=report.notice_class.name.lower(),
            message=report.message,
        )
