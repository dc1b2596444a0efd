"""The endpoints by which an operator drains nodes: notices that stand until somebody ends them."""

from dataclasses import dataclass
from typing import Annotated

import msgspec
import structlog
from aiohttp import web
from msgspec import Meta

from supervisor.domain.notice import LONGEST_DRAIN_SECONDS, SHORTEST_SECONDS
from supervisor.identity.tokens import Operator
from supervisor.ingest.drills import Node
from supervisor.ingest.http import Authenticate, body, printable, require_principal
from supervisor.ingest.requested_notices import RequestedNotices

_MAX_BYTES = 4096

_log = structlog.get_logger()


class Drain(msgspec.Struct, frozen=True, kw_only=True):
    """A request to empty a node within `lead_seconds`; `reason` is for people."""

    node: Node
    lead_seconds: Annotated[float, Meta(ge=SHORTEST_SECONDS, le=LONGEST_DRAIN_SECONDS)]
    reason: Annotated[str, Meta(max_length=256)] = ""

    def __post_init__(self) -> None:
        printable("reason", self.reason)


class End(msgspec.Struct, frozen=True, kw_only=True):
    """A request to end the drain of a node."""

    node: Node


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainEndpoints:
    """Endpoints for operators. A drain is stored like any notice."""

    notices: RequestedNotices
    authenticate: Authenticate

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/drains", self.begin), web.post("/v1/drains/end", self.end)]

    async def begin(self, request: web.Request) -> web.Response:
        """Drains a node, or changes by when and why."""
        operator = await require_principal(Operator, request, self.authenticate)
        asked = await body(request, Drain, _MAX_BYTES)
        message = f"{operator.name}: {asked.reason}" if asked.reason else operator.name
        notice, left = await self.notices.announce(asked.node, asked.lead_seconds, message)
        _log.warning(
            "drain.begun",
            notice=notice,
            subject=asked.node,
            lead_seconds=asked.lead_seconds,
            by=operator.name,
            reason=asked.reason,
        )
        return web.json_response({"notice": notice, "seconds_left": left})

    async def end(self, request: web.Request) -> web.Response:
        """Ends the drain of a node; that there is none is not an error."""
        operator = await require_principal(Operator, request, self.authenticate)
        asked = await body(request, End, _MAX_BYTES)
        ended = await self.notices.withdraw(asked.node)
        for notice in ended:
            _log.warning("drain.ended", notice=notice.id, subject=notice.subject.name, by=operator.name)
        return web.json_response({"ended": [notice.subject.name for notice in ended]})
