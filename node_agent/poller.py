"""Polls one source, once a second, and puts reports and the source's state into the outbox.

`step` is the rule by which answers become reports; `Poller` asks, and calls it.
"""

import asyncio
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import structlog

from node_agent import notices
from node_agent.node import ALWAYS_SPOT, NodeObject, ThisNode
from node_agent.outbox import NoticeOutbox, OutboxFull
from node_agent.watchdog import Watchdog
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from servicekit.faults import Fault

# This many clear answers in a row withdraw a notice: a single one may be an error of the cloud's.
CLEARS_TO_WITHDRAW = 3
# A deadline that moved by more than this many seconds is reported again.
_DEADLINE_DRIFT = 1.0
# The same for an instant on our own clock: an estimate, which also jumps by the whole seconds of an HTTP date.
_ESTIMATE_DRIFT = 2.0

# Seconds for one poll: a source that hangs must not delay the polls after it.
POLL_LIMIT = 1.0
# The period varies downwards only, so that the promised maximum between two polls holds.
_JITTER = 0.1

OnPoll = Callable[[notices.SourceName, notices.PollResult, float | None], None]
"""A hook for metrics: the source, the result of a poll, and its seconds; None where the source was not asked."""


@dataclass(frozen=True, slots=True)
class UnknownAnswer:
    """A poll without a usable answer."""

    reason: str


@dataclass(frozen=True, slots=True)
class SkippedPoll:
    """No poll, because the node is not spot capacity, so the source has nothing to announce."""

    reason: str


@dataclass(frozen=True, slots=True)
class TrackedSource:
    """The state of one source since this agent started.

    Attributes:
        clears: Clear answers in a row.
        milder: Answers in a row that are clear, or name a less urgent class than the last report.
        reported: The last report about this node; None before the first.
    """

    status: notices.ReportedSource
    clears: int = 0
    milder: int = 0
    reported: notices.NoticeReport | None = None


def step(
    state: TrackedSource,
    answer: notices.Answer | UnknownAnswer | SkippedPoll,
    subject: notices.NoticeSubject | None,
    now: float,
) -> tuple[TrackedSource, notices.NoticeReport | None]:
    """Handles one answer. Pure.

    Args:
        state: The state before.
        answer: The answer.
        subject: This node; None while its uid is not known, and then nothing is reported.
        now: The monotonic instant of the answer.

    Returns:
        The state after, and the report if there is one.
    """
    source, last_good, reported = state.status.source, state.status.last_good, state.reported
    active = reported is not None and reported.announcement is notices.AnnouncementState.ACTIVE
    clears = milder = 0
    match answer:
        case notices.Clear():
            status = notices.ReportedSource(source, notices.PollResult.CLEAR, now)
            clears, milder = state.clears + 1, state.milder + 1
        case notices.Noticed():
            status = notices.ReportedSource(source, notices.PollResult.NOTICED, now)
            if active and reported is not None and answer.notice_class < reported.notice_class:
                milder = state.milder + 1
        case UnknownAnswer(reason):
            status = notices.ReportedSource(source, notices.PollResult.UNKNOWN, last_good, reason)
        case SkippedPoll(reason):
            status = notices.ReportedSource(source, notices.PollResult.NOT_SPOT, last_good, reason)

    report = None
    if isinstance(answer, notices.Clear) and subject and clears >= CLEARS_TO_WITHDRAW and (active or reported is None):
        # Reported once, also by an agent that announced nothing: an earlier agent of this node may have.
        revision = reported.revision + 1 if reported else 1
        report = notices.NoticeReport(source, subject, revision, notices.AnnouncementState.WITHDRAWN)
    # An answer that takes back a part of the report counts the third time, like a withdrawal.
    if isinstance(answer, notices.Noticed) and subject and (milder == 0 or milder >= CLEARS_TO_WITHDRAW):
        report = _announcement(state, answer, subject, now)
    return TrackedSource(status, clears, milder, report or reported), report


def _announcement(
    state: TrackedSource, answer: notices.Noticed, subject: notices.NoticeSubject, now: float
) -> notices.NoticeReport | None:
    """Makes a report from the answer; None if it differs too little from the last report.

    It is compared with the last report and not with the last answer, so that a slow drift adds up.
    """
    old = state.reported
    deadline = None if answer.seconds_left is None else now + answer.seconds_left
    if (
        deadline is not None
        and answer.announced is None
        and old is not None
        and old.announcement is notices.AnnouncementState.ACTIVE
        and old.announced is None
        and old.deadline is not None
        and old.notice_class is answer.notice_class
    ):
        # The usual lead of a source that names no instant counts from the first answer: a repetition changes nothing.
        deadline = min(old.deadline, deadline)
    new = notices.NoticeReport(
        source=state.status.source,
        subject=subject,
        revision=old.revision + 1 if old else 1,
        announcement=notices.AnnouncementState.ACTIVE,
        deadline=deadline,
        announced=answer.announced,
        message=answer.message,
        notice_class=answer.notice_class,
        cancellable=answer.cancellable,
    )
    if old is None or (old.announcement, old.notice_class, old.cancellable, old.message) != (
        new.announcement,
        new.notice_class,
        new.cancellable,
        new.message,
    ):
        return new
    old_announced = old.announced.timestamp() if old.announced else None
    new_announced = new.announced.timestamp() if new.announced else None
    drift = _ESTIMATE_DRIFT if new.announced else _DEADLINE_DRIFT
    for before, after, tolerance in ((old_announced, new_announced, _DEADLINE_DRIFT), (old.deadline, deadline, drift)):
        if before is None or after is None:
            if before is not after:
                return new
        elif abs(after - before) > tolerance:
            return new
    return None


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

    Attributes:
        source: The source's name.
        tracked: The state of the source.
    """

    def __init__(  # noqa: PLR0913 - half of them have defaults
        self,
        source: notices.NoticeSource,
        node: ThisNode,
        outbox: NoticeOutbox,
        clock: Clock,
        period: float,
        *,
        bulkhead: Bulkhead,
        spot: NodeObject = ALWAYS_SPOT,
        max_lead: float = math.inf,
        on_poll: OnPoll | None = None,
    ) -> None:
        self.source = source.name
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
        self.tracked = TrackedSource(
            notices.ReportedSource(source.name, notices.PollResult.UNKNOWN, detail="not polled yet")
        )
        outbox.set_status(self.tracked.status)

    async def run(self) -> None:
        """Root task: polls the source.

        The first poll waits a moment until it is known whether the node is spot capacity.
        """
        await self._spot.wait_known()
        while True:
            started = self._clock.monotonic()
            self.watchdog.feed(POLL_LIMIT + self._period)
            # Tried again with the next poll: each notice is worth a poll a second.
            with self._bulkhead.guard("source", self.source) as attempt:
                await self.once()
            if attempt.failed:
                self._handle(UnknownAnswer("internal error, see the agent's log"))
            period = self._period * self._random.uniform(1.0 - _JITTER, 1.0)
            await asyncio.sleep(max(0.0, started + period - self._clock.monotonic()))

    async def once(self) -> None:
        """Polls once and handles the answer."""
        answer: notices.Answer | UnknownAnswer | SkippedPoll
        seconds = None
        if self._spot.not_spot_reason:
            answer = SkippedPoll(f"the node is not spot: {self._spot.not_spot_reason}")
            self._fault.recovered()
        else:
            began = self._clock.monotonic()
            try:
                async with asyncio.timeout(POLL_LIMIT):
                    answer = await self._ask()
                self._fault.recovered()
            except (notices.SourceUnavailable, TimeoutError) as error:
                answer = UnknownAnswer(str(error) or f"no answer within {POLL_LIMIT:g} s")
                self._fault.failed(answer.reason)
            seconds = self._clock.monotonic() - began
        self._handle(answer)
        if self._on_poll is not None:
            self._on_poll(self.source, self.tracked.status.state, seconds)

    async def _ask(self) -> notices.Answer:
        """Asks for the node's identity until it is known, then for announcements.

        A service that cannot tell the machine's id is not the metadata service, so its 404 does not mean "clear".
        """
        if not self._identified:
            identity = await self._source.identify()
            if identity is None:
                self._node.describe(notices.NodeIdentity(""))
            else:
                self._node.resolve(identity)
            self._identified = True
        if self._node.subject is None:
            raise notices.SourceUnavailable("the node's uid is not known yet")
        answer = await self._source.poll()
        if (
            isinstance(answer, notices.Noticed)
            and answer.notice_class is notices.NoticeUrgency.SUDDEN
            and answer.seconds_left is not None
            and answer.seconds_left > self._max_lead
        ):
            at = f"{answer.announced:%Y-%m-%dT%H:%M:%SZ}" if answer.announced else "an instant"
            raise notices.SourceUnavailable(f"announces a reclaim at {at}, more than {self._max_lead:g} s ahead")
        return answer

    def _handle(self, answer: notices.Answer | UnknownAnswer | SkippedPoll) -> None:
        failpoint(notices.AgentFailpoint.SOURCE_ANSWERED)
        before = self.tracked
        self.tracked, report = step(before, answer, self._node.subject, self._clock.monotonic())
        if report is not None and not self._put(report):
            # Forgets the report, so that the next poll makes it again.
            self.tracked = replace(self.tracked, reported=before.reported)
        self._outbox.set_status(self.tracked.status)

    def _put(self, report: notices.NoticeReport) -> bool:
        try:
            self._outbox.put(report)
        except OutboxFull as full:
            self._overflow.failed(str(full))
            return False
        failpoint(notices.AgentFailpoint.REPORT_KEPT)
        self._overflow.recovered()
        structlog.get_logger().info(
            "node.noticed",
            notice=report.id,
            node=report.subject.name,
            announcement=report.announcement.name.lower(),
            seconds_left=None if report.deadline is None else round(report.deadline - self._clock.monotonic(), 1),
            notice_class=report.notice_class.name.lower(),
            message=report.message,
        )
        return True
