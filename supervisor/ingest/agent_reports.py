"""One agent's reports: each is acknowledged once it is durable, and kept until it is."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from servicekit.backoff import Backoff
from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from servicekit.wakeup import Wakeup
from supervisor.decide.notices import accept
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
"""Seconds: what was announced during an outage is decided within five of its end."""

_MAX_WAITING = 1280
"""Of one stream: as many as are kept of a node and its pods."""

_log = structlog.get_logger()


def ignore_refusal(_source: Source) -> None:
    """Where nothing is measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDependencies:
    """What reports are weighed with, and where they go; `on_refused` is told whose reports come to nothing."""

    store: Store
    unconfirmed: UnconfirmedNotices
    pods: PodReports
    refusals: Refusals
    policy: Policy
    clock: Clock
    on_refused: Callable[[Source], None] = ignore_refusal


@dataclass(frozen=True, slots=True)
class _Received:
    said: Report
    at: float


class ReportHandler:
    """The reports of one stream. Let `run` run beside it; `end` when it has ended.

    Args:
        ports: See `ReportDependencies`.
        node: Whose agent speaks.
        acknowledge: Tells the agent that a report is durable.
    """

    def __init__(self, deps: ReportDependencies, node: Host, acknowledge: Callable[[Report], Awaitable[None]]) -> None:
        self._deps = deps
        self._node = node
        self._acknowledge = acknowledge
        self._waiting: dict[NoticeId, _Received] = {}
        self._wakeup = Wakeup()

    async def put(self, said: Report) -> None:
        """Weighs a report, and acknowledges it once what came of it is durable; keeps it while that cannot be.

        Raises:
            MalformedError: It is about a pod of another node.
            TooManyError: More than anything honest.
        """
        failpoint(At.NOTICE_RECEIVED)
        try:
            self._deps.pods.admit(self._node, said)
            await self._put(_Received(said, self._deps.clock.now()))
        except (MalformedError, TooManyError):
            self._deps.on_refused(said.source)
            raise

    async def run(self) -> None:
        """Tries again what is kept, for as long as there is anything."""
        while True:
            await self._wakeup.wait()
            backoff = Backoff(_FIRST_RETRY, _MAX_RETRY)
            while self._waiting:
                await self._deps.unconfirmed.wait(backoff.next())
                await self._retry()

    def end(self) -> None:
        """Nobody waits for an acknowledgement any more."""
        self._deps.unconfirmed.end(self)

    async def _put(self, received: _Received) -> None:
        try:
            await self._store(received)
        except StoreUnavailableError as error:
            self._keep(received, error)

    async def _retry(self) -> None:
        for received in list(self._waiting.values()):
            try:
                await self._store(received)
            except StoreUnavailableError:
                return

    def _keep(self, received: _Received, error: StoreUnavailableError) -> None:
        said = received.said
        if len(self._waiting) >= _MAX_WAITING and said.id not in self._waiting:
            raise TooManyError(f"more than {_MAX_WAITING} reports of {self._node} wait to be stored") from error
        self._waiting[said.id] = received
        known = self._deps.store.snapshot().notices.get(said.id)
        self._deps.unconfirmed.put(self, said.id, self._weighed(known, received))
        self._deps.refusals.add(Wire.GRPC, Code.NOT_SERVING, f"a report on {said.id} has to wait: {error}")
        self._wakeup.set()

    def _weighed(self, known: ReclaimNotice | None, received: _Received) -> ReclaimNotice | None:
        return accept(known, received.said, received.at, self._deps.policy)

    async def _store(self, received: _Received) -> None:
        said = received.said
        notice = await self._deps.store.put_notice(said.id, lambda known: self._weighed(known, received))
        failpoint(At.NOTICE_STORED)
        kept = self._waiting.get(said.id)
        if kept is not None and kept.said.revision <= said.revision:
            del self._waiting[said.id]
            self._deps.unconfirmed.durable(self, said.id)
        await self._acknowledge(said)
        failpoint(At.NOTICE_ACKNOWLEDGED)
        if notice is not None:
            self._record(notice, said)

    def _record(self, notice: ReclaimNotice, said: Report) -> None:
        if (notice.session, notice.revision) > (said.session, said.revision):
            self._deps.refusals.add(Wire.GRPC, Code.OLDER_REVISION, f"a newer report on {notice.id} is known")
            self._deps.on_refused(said.source)
        elif (notice.session, notice.revision) == (said.session, said.revision):
            _log.info(
                "notice.received",
                notice=notice.id,
                episode=notice.episode,
                subject=notice.subject.name,
                state=notice.state,
                seconds_left=said.seconds_left,
            )
