"""`GET /v1/status`: everything at once, page by page, for tools that only look."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from aiohttp import web

from supervisor.identity.tokens import Viewer
from supervisor.ingest.http import Bearer, bearer_as
from supervisor.ingest.refused import MalformedError
from supervisor.observability import paging
from supervisor.observability.snapshot import StatusSnapshot
from supervisor.observability.view import view


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusEndpoint:
    """Read-only, with a viewer's token."""

    look: Callable[[], StatusSnapshot]
    bearer: Bearer

    def routes(self) -> list[web.RouteDef]:
        """What is served here."""
        return [web.get("/v1/status", self.status)]

    async def status(self, request: web.Request) -> web.Response:
        """One page of what is so now, as JSON."""
        await bearer_as(Viewer, request, self.bearer)
        after, most = _asked(request)
        seen = self.look()
        return web.json_response(body=msgspec.json.encode(view(seen, paging.page(seen, after, most))))


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
