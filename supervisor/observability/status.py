"""`GET /v1/status`: the status as JSON, in pages. `GET /v1/history`: what happened."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from aiohttp import web

from supervisor.domain.ids import JobName
from supervisor.identity.tokens import Viewer
from supervisor.ingest.errors import MalformedError
from supervisor.ingest.http import Authenticate, require_principal
from supervisor.observability.snapshot import MAX_ENTRIES, START, PagePosition, StatusSnapshot, page
from supervisor.observability.status_view import status_view
from supervisor.observability.views import HistoryView


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusEndpoint:
    snapshot: Callable[[], StatusSnapshot]
    happened: Callable[[JobName | None], HistoryView]
    authenticate: Authenticate

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/status", self.status), web.get("/v1/history", self.history)]

    async def status(self, request: web.Request) -> web.Response:
        """Answers with one page of the present status."""
        await require_principal(Viewer, request, self.authenticate)
        after, limit = _page_query(request)
        snapshot = self.snapshot()
        return web.json_response(body=msgspec.json.encode(status_view(snapshot, page(snapshot, after, limit))))

    async def history(self, request: web.Request) -> web.Response:
        """Answers with what happened to the job of the query, or to all jobs."""
        await require_principal(Viewer, request, self.authenticate)
        job = request.query.get("job")
        view = self.happened(None if job is None else JobName(job))
        return web.json_response(body=msgspec.json.encode(view))


def _page_query(request: web.Request) -> tuple[PagePosition, int]:
    wanted, after = request.query.get("limit"), request.query.get("after")
    try:
        limit = MAX_ENTRIES if wanted is None else min(MAX_ENTRIES, int(wanted))
        position = START if after is None else PagePosition.read(after)
    except ValueError as error:
        raise MalformedError("`limit` must be a number, and `after` the `next` of an answer") from error
    if limit < 1:
        raise MalformedError("`limit` must be at least 1")
    return position, limit
