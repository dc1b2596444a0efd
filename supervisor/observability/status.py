"""`GET /v1/status`: everything at once, page by page, for tools that only look."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from aiohttp import web

from supervisor.identity.tokens import Viewer
from supervisor.ingest.errors import MalformedError
from supervisor.ingest.http import Authenticate, require_principal
from supervisor.observability import paging
from supervisor.observability.snapshot import StatusSnapshot
from supervisor.observability.status_view import status_view


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusEndpoint:
    """Read-only, with a viewer's token."""

    snapshot: Callable[[], StatusSnapshot]
    authenticate: Authenticate

    def routes(self) -> list[web.RouteDef]:
        """What is served here."""
        return [web.get("/v1/status", self.status)]

    async def status(self, request: web.Request) -> web.Response:
        """One page of what is so now, as JSON."""
        await require_principal(Viewer, request, self.authenticate)
        after, most = _asked(request)
        seen = self.snapshot()
        return web.json_response(body=msgspec.json.encode(status_view(seen, paging.page(seen, after, most))))


def _asked(request: web.Request) -> tuple[paging.Position, int]:
    limit, after = request.query.get("limit"), request.query.get("after")
    try:
        most = paging.MAX_ENTRIES if limit is None else min(paging.MAX_ENTRIES, int(limit))
        position = paging.START if after is None else paging.Position.read(after)
    except ValueError as error:
        raise MalformedError("`limit` is a number, and `after` what an answer had as `next`") from error
    if most < 1:
        raise MalformedError("`limit` is at least 1")
    return position, most
