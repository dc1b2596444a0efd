"""The endpoints for fire drills: notices that no cloud announced, with all their consequences."""

from dataclasses import dataclass
from typing import Annotated

import msgspec
import structlog
from aiohttp import web
from msgspec import Meta

from supervisor.domain.notice import LONGEST_SECONDS, SHORTEST_SECONDS, explained
from supervisor.identity.tokens import Operator
from supervisor.ingest.http import Authenticate, body, require_principal
from supervisor.ingest.requested_notices import RequestedNotices

_MAX_BYTES = 4096

Node = Annotated[str, Meta(min_length=1, max_length=253)]

_log = structlog.get_logger()


class Drill(msgspec.Struct, frozen=True, kw_only=True):
    """A request to start a drill."""

    node: Node
    lead_seconds: Annotated[float, Meta(ge=SHORTEST_SECONDS, le=LONGEST_SECONDS)]


class End(msgspec.Struct, frozen=True, kw_only=True):
    """A request to end the drill on one node, or all drills."""

    node: Node | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillEndpoints:
    """Endpoints for operators. A drill is stored like any notice, and ends at its deadline at the latest."""

    notices: RequestedNotices
    authenticate: Authenticate

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/drills", self.begin), web.post("/v1/drills/end", self.end)]

    async def begin(self, request: web.Request) -> web.Response:
        """Starts a drill on a node, or moves the deadline of its drill."""
        operator = await require_principal(Operator, request, self.authenticate)
        asked = await body(request, Drill, _MAX_BYTES)
        notice, left = await self.notices.announce(asked.node, asked.lead_seconds, explained(operator.name))
        _log.warning(
            "drill.begun",
            notice=notice,
            subject=asked.node,
            lead_seconds=asked.lead_seconds,
            by=operator.name,
        )
        return web.json_response({"notice": notice, "seconds_left": left})

    async def end(self, request: web.Request) -> web.Response:
        """Ends drills early; that there is none is not an error."""
        operator = await require_principal(Operator, request, self.authenticate)
        asked = await body(request, End, _MAX_BYTES)
        ended = await self.notices.withdraw(asked.node)
        for notice in ended:
            _log.warning("drill.ended", notice=notice.id, subject=notice.subject.name, by=operator.name)
        return web.json_response({"ended": [notice.subject.name for notice in ended]})
