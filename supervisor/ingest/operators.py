"""Serves operators (people) over HTTP: drills and drains of nodes, and requests to suspend, stop or resume a job."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from supervisor.domain import notice as notices
from supervisor.domain.asking import BeginDrain, BeginDrill, EndDrain, EndDrill, SteerJob
from supervisor.domain.ids import Host, JobName, Source
from supervisor.domain.job import RequestKind
from supervisor.identity.tokens import Operator
from supervisor.ingest.http import Authenticate, PrintableBody, body, require_principal
from supervisor.ingest.steering import StoreSteering

_MAX_BYTES = 4096

NodeName = Annotated[str, Meta(min_length=1, max_length=253)]
Reason = Annotated[str, Meta(max_length=256)]


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
    """Announces and withdraws notices of two sources, drill and drain, on the nodes of known agents."""

    steering: StoreSteering
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
        operator = await require_principal(Operator, request, self.authenticate)
        wanted = await body(request, DrillBegin, _MAX_BYTES)
        return await self._begin(
            operator, notices.SIMULATED, BeginDrill(node=Host(wanted.node), lead=wanted.lead_seconds)
        )

    async def end_drill(self, request: web.Request) -> web.Response:
        """Ends drills early. It is not an error if there is none."""
        operator = await require_principal(Operator, request, self.authenticate)
        node = (await body(request, DrillEnd, _MAX_BYTES)).node
        return await self._end(operator, EndDrill(node=None if node is None else Host(node)))

    async def begin_drain(self, request: web.Request) -> web.Response:
        """Drains a node, or changes the deadline and the reason of a drain."""
        operator = await require_principal(Operator, request, self.authenticate)
        wanted = await body(request, DrainBegin, _MAX_BYTES)
        asked = BeginDrain(node=Host(wanted.node), lead=wanted.lead_seconds, reason=wanted.reason)
        return await self._begin(operator, notices.OPERATOR, asked)

    async def end_drain(self, request: web.Request) -> web.Response:
        """Ends the drain of a node. It is not an error if there is none."""
        operator = await require_principal(Operator, request, self.authenticate)
        node = (await body(request, DrainEnd, _MAX_BYTES)).node
        return await self._end(operator, EndDrain(node=Host(node)))

    async def _begin(self, operator: Operator, source: Source, asked: BeginDrill | BeginDrain) -> web.Response:
        [subject] = await self.steering.carry_out(operator.name, asked)
        return web.json_response({"notice": notices.notice_id(source, subject), "seconds_left": asked.lead})

    async def _end(self, operator: Operator, asked: EndDrill | EndDrain) -> web.Response:
        ended = await self.steering.carry_out(operator.name, asked)
        return web.json_response({"ended": [subject.name for subject in ended]})


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

    steering: StoreSteering
    authenticate: Authenticate

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
        return await self._steer(operator, SteerJob(job=JobName(wanted.job), kind=kind, reason=wanted.reason))

    async def resume(self, request: web.Request) -> web.Response:
        """Withdraws a request. It is not an error if there is none."""
        operator = await require_principal(Operator, request, self.authenticate)
        target = await body(request, RequestedJob, _MAX_BYTES)
        return await self._steer(operator, SteerJob(job=JobName(target.job), kind=None))

    async def _steer(self, operator: Operator, asked: SteerJob) -> web.Response:
        await self.steering.carry_out(operator.name, asked)
        return web.json_response({})
