"""Reads what agents send, and stores and acknowledges their reports of notices.

Every field is checked, and a refusal names it. A report is acknowledged once it is stored, and kept until then.
"""

import math
from collections.abc import Awaitable, Callable, Container
from dataclasses import dataclass

import structlog
from google.protobuf.message import DecodeError
from reclaim.v1 import reclaim_pb2 as wire

from servicekit.bounds import one_line
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.failpoints import failpoint
from servicekit.faults import Backoff
from servicekit.reconcile import Wakeup
from supervisor.decide.notices import apply_report
from supervisor.decide.policy import Policy
from supervisor.domain.capacity import Machine, PriceClass
from supervisor.domain.ids import NAME_RULE, Host, NoticeId, Source, is_name
from supervisor.domain.notice import (
    NOT_OF_AGENTS,
    Announcement,
    NoticeClass,
    ReclaimNotice,
    Report,
    Subject,
    SubjectKind,
)
from supervisor.failpoints import At
from supervisor.identity.tokens import Principal
from supervisor.ingest.agent_registry import AgentRegistry, AgentState, SourceState, UnconfirmedNotices
from supervisor.ingest.errors import MalformedError, OversizedError, TooManyError
from supervisor.refusals import Code, Refusals, Wire
from supervisor.store.interface import Store, StoreUnavailableError

MAX_SOURCES = 16
"""Sources on one stream."""

MAX_PODS = 1024
"""Pods of one node whose notices are kept, including the last 24 h: a node has at most 250 pods at a time."""

_MAX_NAMESPACE = 63
_MAX_SECONDS_LEFT = 366 * 86400.0
_MAX_NOTICES_OF_HELLO = 1024
_MAX_BYTES = 1024 * 1024
_MAX_NUMBER = 2**63 - 1  # Leaves a session room to be raised by one, and fits whatever a store counts with.

_MAX_WAITING = 1280
"""For one stream: the number of notices that are kept for a node and its pods."""

_FIRST_RETRY = 0.2
_MAX_RETRY = 1.0
"""Seconds; short enough to decide within 5 s of the end of an outage about what was announced during it."""

_ANNOUNCEMENTS = {
    wire.ANNOUNCEMENT_ACTIVE: Announcement.ACTIVE,
    wire.ANNOUNCEMENT_WITHDRAWN: Announcement.WITHDRAWN,
}
_CLASSES = {
    wire.NOTICE_CLASS_SCHEDULED: NoticeClass.SCHEDULED,
    wire.NOTICE_CLASS_HINT: NoticeClass.HINT,
}
"""All others are sudden: the class of an older agent, and one that only a newer agent knows."""

_PRICES = {wire.PRICE_CLASS_SPOT: PriceClass.SPOT, wire.PRICE_CLASS_ON_DEMAND: PriceClass.ON_DEMAND}

_STATES = {
    wire.SOURCE_STATE_CLEAR: SourceState.CLEAR,
    wire.SOURCE_STATE_NOTICED: SourceState.NOTICED,
    wire.SOURCE_STATE_NOT_SPOT: SourceState.NOT_SPOT,
}

_log = structlog.get_logger()

Received = wire.AgentMessage | MalformedError | OversizedError
"""A message, or the error of decoding it: if decoding raised, gRPC would end the stream without counting it."""


def decode(data: bytes) -> Received:
    """Decodes a message; returns the error instead of raising it."""
    if len(data) > _MAX_BYTES:
        return OversizedError(f"more than {_MAX_BYTES} bytes")
    try:
        return wire.AgentMessage.FromString(data)
    except DecodeError:
        return MalformedError("the bytes are not a message")


def read_hello(hello: wire.Hello, now: float) -> AgentState:
    """Returns the state of the agent that sent a hello, received `now`.

    Raises:
        MalformedError: A field is missing or wrong.
    """
    if len(hello.sources) > MAX_SOURCES or len(hello.notices) > _MAX_NOTICES_OF_HELLO:
        raise MalformedError("too many sources or notices")
    if not 0 < hello.session < _MAX_NUMBER:
        raise MalformedError("session must be set, and below 2**63 - 1")
    if hello.stream > _MAX_NUMBER:
        raise MalformedError("stream must be below 2**63")
    return AgentState(
        node=Host(_name("node", hello.node)),
        uid=_name("node_uid", hello.node_uid),
        session=hello.session,
        stream=hello.stream,
        connected=True,
        sources=dict(read_source(each) for each in hello.sources if each.about != wire.SUBJECT_KIND_POD),
        pod_sources=dict(read_source(each) for each in hello.sources if each.about == wire.SUBJECT_KIND_POD),
        machine=read_machine(hello.machine, now),
    )


def read_machine(message: wire.Machine, now: float) -> Machine:
    """Returns the machine that a message, received `now`, describes.

    Raises:
        MalformedError: A field is wrong.
    """
    protected = _bounded("machine.protected_seconds", message.protected_seconds)
    return Machine(
        cloud=_name("machine.cloud", message.cloud, optional=True),
        region=_name("machine.region", message.region, optional=True),
        zone=_name("machine.zone", message.zone, optional=True),
        instance_type=_name("machine.instance_type", message.instance_type, optional=True),
        price_class=_PRICES.get(message.price_class, PriceClass.UNKNOWN),
        spot_strategy=_name("machine.spot_strategy", message.spot_strategy, optional=True),
        protected_until=now + protected if message.HasField("protected_seconds") else None,
    )


def read_source(message: wire.SourceReport) -> tuple[Source, SourceState]:
    """Returns a source's name and state; a state of a newer agent counts as unknown.

    Raises:
        MalformedError: The name is missing or wrong.
    """
    return _source(message.source), _STATES.get(message.state, SourceState.UNKNOWN)


def read_report(message: wire.NoticeReport, speaker: AgentState) -> Report:
    """Returns an agent's report about its own node, or about a pod, whose node is not checked here.

    Raises:
        MalformedError: A field is missing or wrong, or the report is about another node.
    """
    if message.announcement not in _ANNOUNCEMENTS:
        raise MalformedError("announcement must be active or withdrawn")
    if not 0 < message.revision <= _MAX_NUMBER:
        raise MalformedError("revision must be set, and below 2**63")
    source, subject = _source(message.source), _subject(message.subject, speaker)
    seconds_left = _bounded("seconds_left", message.seconds_left)
    try:
        announced = message.deadline.ToJsonString() if message.HasField("deadline") else ""
    except ValueError as error:
        raise MalformedError("deadline is not a valid timestamp") from error
    return Report(
        source=source,
        subject=subject,
        session=speaker.session,
        revision=message.revision,
        announcement=_ANNOUNCEMENTS[message.announcement],
        seconds_left=seconds_left if message.HasField("seconds_left") else None,
        notice_class=_CLASSES.get(message.notice_class, NoticeClass.SUDDEN),
        cancellable=message.cancellable,
        announced=announced,
        message=one_line(message.message),
    )


def _subject(subject: wire.Subject, speaker: AgentState) -> Subject:
    if subject.kind == wire.SUBJECT_KIND_POD:
        namespace, _, name = subject.name.partition("/")
        # A second slash would make the name ambiguous.
        if len(namespace) > _MAX_NAMESPACE or "/" in name:
            raise MalformedError("the name of a pod must be namespace/name")
        full = f"{_name('namespace', namespace)}/{_name('pod', name)}"
        return Subject(SubjectKind.POD, full, _name("uid", subject.uid))
    if subject.kind != wire.SUBJECT_KIND_NODE or (subject.name, subject.uid) != (speaker.node, speaker.uid):
        raise MalformedError(f"the agent of {speaker.node} reports its own node and pods only")
    return Subject(SubjectKind.NODE, subject.name, subject.uid)


def _source(name: str) -> Source:
    source = Source(_name("source", name))
    if source in NOT_OF_AGENTS:
        raise MalformedError(f"{source} is not a source of agents")
    return source


def _name(field: str, text: str, *, optional: bool = False) -> str:
    if not is_name(text) and not (optional and not text):
        raise MalformedError(f"{field} must have {NAME_RULE}")
    return text


def _bounded(field: str, seconds: float) -> float:
    if not math.isfinite(seconds):
        raise MalformedError(f"{field} must be a finite number")
    return max(-_MAX_SECONDS_LEFT, min(_MAX_SECONDS_LEFT, seconds))


class PodReports:
    """Admits reports about pods. An agent may report only pods of its own node, and only a limited number.

    Args:
        node_of: Returns the node that a pod is bound to; None if it is unknown, "" if another pod has its uid.
        kept: Returns the ids of the stored notices.
    """

    def __init__(self, node_of: Callable[[Subject], Host | None], kept: Callable[[], Container[NoticeId]]) -> None:
        self._node_of = node_of
        self._kept = kept
        self._reported: dict[Host, set[NoticeId]] = {}

    def admit(self, node: Host, report: Report) -> None:
        """Checks a report of the node's agent; reports about the node itself always pass.

        Raises:
            MalformedError: The pod is on another node.
            TooManyError: The agent has reported too many pods.
        """
        if report.subject.kind is not SubjectKind.POD:
            return
        if self._node_of(report.subject) not in (None, node):
            raise MalformedError(f"{report.subject.name} is not on {node}")
        reported = self._reported.setdefault(node, set())
        if report.id not in reported and len(reported) >= MAX_PODS:
            kept = self._kept()
            reported.intersection_update([each for each in reported if each in kept])
        if report.id not in reported and len(reported) >= MAX_PODS:
            raise TooManyError(f"more than {MAX_PODS} pods of {node} have notices")
        reported.add(report.id)

    def forget_others(self, nodes: Container[Host]) -> None:
        """Forgets all other nodes."""
        for node in [node for node in self._reported if node not in nodes]:
            del self._reported[node]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDependencies:
    """The dependencies of the agent service. `on_refused` is called with the source of each refused report."""

    store: Store
    agents: AgentRegistry
    unconfirmed: UnconfirmedNotices
    pods: PodReports
    refusals: Refusals
    authenticate: Callable[[str | None], Awaitable[Principal]]
    policy: Policy
    clock: Clock
    bulkhead: Bulkhead
    heartbeat_seconds: float
    on_refused: Callable[[Source], None] = lambda _source: None


@dataclass(frozen=True, slots=True)
class _PendingReport:
    report: Report
    received_at: float


class ReportHandler:
    """Stores and acknowledges the reports of one stream. The caller runs `run` beside the stream.

    Args:
        deps: The dependencies of the service.
        node: The node of the agent.
        acknowledge: Tells the agent that a report is stored.
    """

    def __init__(self, deps: AgentDependencies, node: Host, acknowledge: Callable[[Report], Awaitable[None]]) -> None:
        self._deps = deps
        self._node = node
        self._acknowledge = acknowledge
        self._waiting: dict[NoticeId, _PendingReport] = {}
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
            pending = _PendingReport(report, self._deps.clock.now())
            try:
                await self._store(pending)
            except StoreUnavailableError as error:
                self._keep(pending)
                known = self._deps.store.snapshot().notices.get(report.id)
                notice = apply_report(known, report, pending.received_at, self._deps.policy)
                self._deps.unconfirmed.put(self, report.id, notice)
                self._deps.refusals.add(Wire.GRPC, Code.NOT_SERVING, f"a report on {report.id} has to wait: {error}")
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

    async def _retry(self) -> None:
        for pending in list(self._waiting.values()):
            if self._deps.bulkhead.pause("reports", pending.report.id):
                continue
            try:
                await self._store(pending)
            except StoreUnavailableError:
                return

    def _keep(self, pending: _PendingReport) -> None:
        if len(self._waiting) >= _MAX_WAITING and pending.report.id not in self._waiting:
            raise TooManyError(f"more than {_MAX_WAITING} reports of {self._node} wait to be stored")
        self._waiting[pending.report.id] = pending
        self._wakeup.set()

    async def _store(self, pending: _PendingReport) -> None:
        """Stores a report, and only then acknowledges it.

        If that raises, it keeps the report, and the stream goes on.
        """
        report, deps = pending.report, self._deps

        notice: ReclaimNotice | None = None
        with deps.bulkhead.guard("reports", report.id, passes=StoreUnavailableError) as attempt:
            notice = await deps.store.put_notice(
                report.id, lambda known: apply_report(known, report, pending.received_at, deps.policy)
            )
        if attempt.failed:
            self._keep(pending)
            return
        failpoint(At.NOTICE_STORED)
        kept = self._waiting.get(report.id)
        if kept is not None and kept.report.revision <= report.revision:
            del self._waiting[report.id]
            deps.unconfirmed.durable(self, report.id)
        await self._acknowledge(report)
        failpoint(At.NOTICE_ACKNOWLEDGED)
        if notice is None:
            return
        if (notice.session, notice.revision) > (report.session, report.revision):
            deps.refusals.add(Wire.GRPC, Code.OLDER_REVISION, f"a newer report on {notice.id} is known")
            deps.on_refused(report.source)
        elif (notice.session, notice.revision) == (report.session, report.revision):
            _log.info(
                "notice.received",
                notice=notice.id,
                episode=notice.episode,
                subject=notice.subject.name,
                state=notice.state,
                seconds_left=report.seconds_left,
            )
