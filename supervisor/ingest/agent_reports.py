"""The reports of one agent: each is stored and acknowledged, and kept until then."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from servicekit.faults import Backoff
from servicekit.reconcile import Wakeup
from supervisor.decide.notices import apply_report
from supervisor.decide.policy import Policy
from supervisor.domain.ids import Host, NoticeId, Source
from supervisor.domain.notice import ReclaimNotice, Report
from supervisor.failpoints import At
from supervisor.ingest.errors import MalformedError, TooManyError
from supervisor.ingest.pod_reports import PodReports
from supervisor.ingest.unconfirmed import UnconfirmedNotices
from supervisor.refusals import Code, Refusals, Wire
from supervisor.store.interface import Store, StoreUnavailableError

_FIRST_RETRY = 0.2
_MAX_RETRY = 1.0
"""Seconds; short enough to decide within 5 s of the end of an outage about what was announced during it."""

_MAX_WAITING = 1280
"""For one stream: the number of notices that are kept for a node and its pods."""

_log = structlog.get_logger()


def ignore_refusal(_source: Source) -> None:
    """The `on_refused` that does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDependencies:
    """The dependencies of `ReportHandler`; `on_refused` is called with the source of each refused report."""

    store: Store
    unconfirmed: UnconfirmedNotices
    pods: PodReports
    refusals: Refusals
    policy: Policy
    clock: Clock
    bulkhead: Bulkhead
    on_refused: Callable[[Source], None] = ignore_refusal


@dataclass(frozen=True, slots=True)
class _Received:
    report: Report
    at: float


class ReportHandler:
    """Handles the reports of one stream. Run `run` beside the stream, and call `end` after it.

    Args:
        deps: See `ReportDependencies`.
        node: The node of the agent.
        acknowledge: Tells the agent that a report is stored.
    """

    def __init__(self, deps: ReportDependencies, node: Host, acknowledge: Callable[[Report], Awaitable[None]]) -> None:
        self._deps = deps
        self._node = node
        self._acknowledge = acknowledge
        self._waiting: dict[NoticeId, _Received] = {}
        self._is_storing = False
        self._wakeup = Wakeup()

    @property
    def has_unstored(self) -> bool:
        """Whether the agent waits for an acknowledgement: a report is being stored, or kept."""
        return self._is_storing or bool(self._waiting)

    async def put(self, report: Report) -> None:
        """Stores and acknowledges a report, or keeps it while the store is unavailable.

        Raises:
            MalformedError: The report is about a pod of another node.
            TooManyError: Too many reports wait, or too many pods were reported.
        """
        failpoint(At.NOTICE_RECEIVED)
        self._is_storing = True
        try:
            self._deps.pods.admit(self._node, report)
            await self._put(_Received(report, self._deps.clock.now()))
        except (MalformedError, TooManyError):
            self._deps.on_refused(report.source)
            raise
        finally:
            self._is_storing = False

    async def run(self) -> None:
        """Retries the kept reports until all are stored."""
        while True:
            await self._wakeup.wait()
            backoff = Backoff(_FIRST_RETRY, _MAX_RETRY)
            while self._waiting:
                await self._deps.unconfirmed.wait(backoff.next())
                await self._retry()

    def end(self) -> None:
        """Drops the kept reports: the agent repeats them in its next hello."""
        self._deps.unconfirmed.end(self)

    async def _put(self, received: _Received) -> None:
        try:
            await self._store(received)
        except StoreUnavailableError as error:
            self._keep(received, error)

    async def _retry(self) -> None:
        for received in list(self._waiting.values()):
            if self._deps.bulkhead.pause("reports", received.report.id):
                continue
            try:
                await self._store(received)
            except StoreUnavailableError:
                return

    def _keep(self, received: _Received, error: StoreUnavailableError) -> None:
        report = received.report
        self._wait(received)
        known = self._deps.store.snapshot().notices.get(report.id)
        self._deps.unconfirmed.put(self, report.id, self._merged(known, received))
        self._deps.refusals.add(Wire.GRPC, Code.NOT_SERVING, f"a report on {report.id} has to wait: {error}")

    def _wait(self, received: _Received) -> None:
        if len(self._waiting) >= _MAX_WAITING and received.report.id not in self._waiting:
            raise TooManyError(f"more than {_MAX_WAITING} reports of {self._node} wait to be stored")
        self._waiting[received.report.id] = received
        self._wakeup.set()

    def _merged(self, known: ReclaimNotice | None, received: _Received) -> ReclaimNotice | None:
        return apply_report(known, received.report, received.at, self._deps.policy)

    async def _store(self, received: _Received) -> None:
        report = received.report
        notice: ReclaimNotice | None = None
        with self._deps.bulkhead.guard("reports", report.id, passes=StoreUnavailableError) as attempt:
            notice = await self._deps.store.put_notice(report.id, lambda known: self._merged(known, received))
        if attempt.failed:
            self._wait(received)
            return
        failpoint(At.NOTICE_STORED)
        kept = self._waiting.get(report.id)
        if kept is not None and kept.report.revision <= report.revision:
            del self._waiting[report.id]
            self._deps.unconfirmed.durable(self, report.id)
        await self._acknowledge(report)
        failpoint(At.NOTICE_ACKNOWLEDGED)
        if notice is not None:
            self._record(notice, report)

    def _record(self, notice: ReclaimNotice, report: Report) -> None:
        if (notice.session, notice.revision) > (report.session, report.revision):
            self._deps.refusals.add(Wire.GRPC, Code.OLDER_REVISION, f"a newer report on {notice.id} is known")
            self._deps.on_refused(report.source)
        elif (notice.session, notice.revision) == (report.session, report.revision):
            _log.info(
                "notice.received",
                notice=notice.id,
                episode=notice.episode,
                subject=notice.subject.name,
                state=notice.state,
                seconds_left=report.seconds_left,
            )
