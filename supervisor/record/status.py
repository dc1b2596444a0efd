"""`GET /v1/status`: everything at once, for tools that only look."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from aiohttp import web

from supervisor.identity.tokens import Viewer
from supervisor.ingest.http import Bearer, bearer_as
from supervisor.record.view import Seen, view


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusEndpoint:
    """Read-only, with a viewer's token."""

    look: Callable[[], Seen]
    bearer: Bearer

    def routes(self) -> list[web.RouteDef]:
        """What is served here."""
        return [web.get("/v1/status", self.status)]

    async def status(self, request: web.Request) -> web.Response:
        """What is so now, as JSON."""
        await bearer_as(Viewer, request, self.bearer)
        return web.json_response(body=msgspec.json.encode(view(self.look())))
