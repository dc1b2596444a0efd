"""Serves the ledger: `GET /v1/ledger`."""

import math
from dataclasses import dataclass

import msgspec
from aiohttp import web

from servicekit.clock import Clock
from supervisor.identity.tokens import Viewer
from supervisor.ingest.errors import MalformedError
from supervisor.ingest.http import Authenticate, require_principal
from supervisor.observability.ledger.book import HOUR, NOBODY
from supervisor.observability.record.database import RecordError
from supervisor.observability.record.recorder import Recorder
from supervisor.observability.views import LedgerJobView, LedgerView
from supervisor.store.interface import StoreUnavailableError


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEndpoint:
    record: Recorder
    clock: Clock
    authenticate: Authenticate

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/ledger", self.ledger)]

    async def ledger(self, request: web.Request) -> web.Response:
        """Answers with the worker-seconds of all jobs, from the hour in which `since` is until now."""
        await require_principal(Viewer, request, self.authenticate)
        if unknown := sorted(request.query.keys() - {"since"}):
            raise MalformedError(f"`{unknown[0]}` is not `since`")
        try:
            since = float(request.query["since"]) // HOUR * HOUR
        except (KeyError, ValueError) as error:
            raise MalformedError("`since` must be given in Unix seconds") from error
        now = self.clock.now()
        if not math.isfinite(since) or since > now:
            raise MalformedError("`since` must be an instant in the past")
        try:
            found = dict(await self.record.read_hours(since, now))
        except RecordError as error:
            raise StoreUnavailableError(f"the ledger cannot be read now: {error}") from error
        counted = sum(found.pop(NOBODY, {}).values())
        jobs = [
            LedgerJobView(job=job, worker_seconds={account.value: spent for account, spent in found[job].items()})
            for job in sorted(found)
        ]
        view = LedgerView(since=since, until=now, counted_seconds=counted, jobs=jobs)
        return web.json_response(body=msgspec.json.encode(view))
