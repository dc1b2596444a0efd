"""Serves operators (people) over HTTP: drills and drains of nodes, and requests to suspend, stop or resume a job."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import msgspec
import structlog
from aiohttp import web
from msgspec import Meta

from servicekit.bounds import instant_of
from servicekit.clock import Clock
from supervisor.decide.notices import apply_report
from supervisor.decide.policy import Policy
from supervisor.decide.registration import with_request
from supervisor.domain import notice as notices
from supervisor.domain.ids import Host, JobName, NoticeId, Source
from supervisor.domain.job import RequestKind, UserRequest
from supervisor.identity.tokens import Operator
from supervisor.ingest.agent_registry import AgentRegistry
from supervisor.ingest.errors import UnknownNodeError
from supervisor.ingest.http import Authenticate, PrintableBody, body, require_principal
from supervisor.store.interface import Store

_MAX_BYTES = 4096

NodeName = Annotated[str, Meta(min_length=1, max_length=253)]
Reason = Annotated[str, Meta(max_length=256)]

_log = structlog.get_logger()


class DrillBegin(msgspec.Struct, frozen=True, kw_only=True):
    """Starts a drill, which is a notice that no cloud announced, with all its consequences."""

    node: NodeName
    lead_seconds: Annotated[float, Meta(ge=notices.SHORTEST_SECONDS, le=notices.LONGEST_SECONDS)]


class DrillEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Ends the drill on one node, or all drills."""

    node: NodeName | None = None


class DrainBegin(PrintableBody, frozen=True, kw_only=True):
    """Empties a node within `lead_seconds`; the notice stands until somebody ends it. `reason` is for people."""

    PRINTABLE = ("reason",)

    node: NodeName
    lead_seconds: Annotated[float, Meta(ge=notices.SHORTEST_SECONDS, le=notices.LONGEST_DRAIN_SECONDS)]
    reason: Reason = ""


class DrainEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Ends the drain of a node."""

    node: NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorNoticeEndpoints:
    """Announces and withdraws notices of two sources, drill and drain, on the nodes of known agents.

    Both are stored like any notice. A drill ends at its deadline at the latest, a drain stands until somebody ends it.
    """

    store: Store
    agents: AgentRegistry
    policy: Policy
    clock: Clock
    authenticate: Authenticate

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/drills", self.begin_drill),
            web.post("/v1/drills/end", self.end_drill),
            web.post("/v1/drains", self.begin_drain),
            web.post("/v1/drains/end", self.end_drain),
        ]

    async def begin_drill(self, request: web.Request) -> web.Response:
        """Starts a drill on a node, or moves the deadline of its drill."""
        by = (await require_principal(Operator, request, self.authenticate)).name
        wanted = await body(request, DrillBegin, _MAX_BYTES)
        notice = await self._announce(notices.SIMULATED, wanted.node, wanted.lead_seconds, notices.explained(by))
        _log.warning("drill.begun", notice=notice, subject=wanted.node, lead_seconds=wanted.lead_seconds, by=by)
        return web.json_response({"notice": notice, "seconds_left": wanted.lead_seconds})

    async def end_drill(self, request: web.Request) -> web.Response:
        """Ends drills early. It is not an error if there is none."""
        operator = await require_principal(Operator, request, self.authenticate)
        ended = await self._withdraw(notices.SIMULATED, (await body(request, DrillEnd, _MAX_BYTES)).node)
        for notice in ended:
            _log.warning("drill.ended", notice=notice.id, subject=notice.subject.name, by=operator.name)
        return web.json_response({"ended": [notice.subject.name for notice in ended]})

    async def begin_drain(self, request: web.Request) -> web.Response:
        """Drains a node, or changes the deadline and the reason of a drain."""
        by = (await require_principal(Operator, request, self.authenticate)).name
        wanted = await body(request, DrainBegin, _MAX_BYTES)
        message = f"{by}: {wanted.reason}" if wanted.reason else by
        notice = await self._announce(notices.OPERATOR, wanted.node, wanted.lead_seconds, message)
        _log.warning(
            "drain.begun",
            notice=notice,
            subject=wanted.node,
            lead_seconds=wanted.lead_seconds,
            by=by,
            reason=wanted.reason,
        )
        return web.json_response({"notice": notice, "seconds_left": wanted.lead_seconds})

    async def end_drain(self, request: web.Request) -> web.Response:
        """Ends the drain of a node. It is not an error if there is none."""
        operator = await require_principal(Operator, request, self.authenticate)
        ended = await self._withdraw(notices.OPERATOR, (await body(request, DrainEnd, _MAX_BYTES)).node)
        for notice in ended:
            _log.warning("drain.ended", notice=notice.id, subject=notice.subject.name, by=operator.name)
        return web.json_response({"ended": [notice.subject.name for notice in ended]})

    async def _announce(self, source: Source, node: str, lead: float, message: str) -> NoticeId:
        """Announces a notice, or changes the present one; returns its id.

        Raises:
            UnknownNodeError: No agent of that node is known.
            StoreUnavailableError: It could not be stored.
        """
        agent = self.agents.by_node.get(Host(node))
        if agent is None:
            raise UnknownNodeError(f"no agent of a node {node} is known")
        subject = notices.Subject(notices.SubjectKind.NODE, node, agent.uid)
        await self._put(source, subject, notices.Announcement.ACTIVE, message, lead)
        return notices.notice_id(source, subject)

    async def _withdraw(self, source: Source, node: str | None) -> list[notices.ReclaimNotice]:
        """Withdraws the active notices on a node, or on all nodes (None); returns the notices as they were before."""
        ended = [
            notice
            for notice in self.store.snapshot().notices.values()
            if notice.source == source
            and notice.state is notices.NoticeState.ACTIVE
            and node in (None, notice.subject.name)
        ]
        for notice in ended:
            await self._put(source, notice.subject, notices.Announcement.WITHDRAWN, notice.message)
        return ended

    async def _put(
        self,
        source: Source,
        subject: notices.Subject,
        announcement: notices.Announcement,
        message: str,
        lead: float | None = None,
    ) -> None:
        def change(known: notices.ReclaimNotice | None) -> notices.ReclaimNotice | None:
            now = self.clock.now()
            report = notices.Report(
                source=source,
                subject=subject,
                # The last request wins: they cannot overtake each other.
                session=1 if known is None else known.session,
                revision=1 if known is None else known.revision + 1,
                announcement=announcement,
                seconds_left=lead,
                announced="" if lead is None else instant_of(now + lead).isoformat(),
                message=message,
            )
            return apply_report(known, report, now, self.policy)

        await self.store.put_notice(notices.notice_id(source, subject), change)


class RequestedJob(PrintableBody, frozen=True, kw_only=True):
    """Names the job that a request is about."""

    job: Annotated[str, Meta(min_length=1, max_length=600)]


class ReasonedRequest(RequestedJob, frozen=True, kw_only=True):
    """Requests something of a job; `reason` is for people."""

    PRINTABLE = ("reason",)

    reason: Reason = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEndpoints:
    """Suspends, stops and resumes stand-alone jobs. A request is stored with its job until somebody withdraws it."""

    store: Store
    authenticate: Authenticate
    clock: Clock

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/jobs/suspend", partial(self.ask, RequestKind.SUSPEND)),
            web.post("/v1/jobs/stop", partial(self.ask, RequestKind.STOP)),
            web.post("/v1/jobs/resume", self.resume),
        ]

    async def ask(self, kind: RequestKind, request: web.Request) -> web.Response:
        """Asks to save the job, and to keep it suspended or to end it for good."""
        operator = await require_principal(Operator, request, self.authenticate)
        wanted = await body(request, ReasonedRequest, _MAX_BYTES)
        reason = wanted.reason.strip().rstrip(".")
        asked = UserRequest(kind=kind, by=operator.name, reason=reason, at=self.clock.now())
        await self.store.put_job(JobName(wanted.job), lambda known: with_request(known, asked))
        _log.warning("job.requested", job=wanted.job, request=kind, by=operator.name, reason=reason)
        return web.json_response({})

    async def resume(self, request: web.Request) -> web.Response:
        """Withdraws a request. It is not an error if there is none."""
        operator = await require_principal(Operator, request, self.authenticate)
        target = await body(request, RequestedJob, _MAX_BYTES)
        await self.store.put_job(JobName(target.job), lambda known: with_request(known, None))
        _log.warning("job.request_withdrawn", job=target.job, by=operator.name)
        return web.json_response({})
