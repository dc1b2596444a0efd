"""The endpoints by which an operator suspends, resumes and stops stand-alone jobs."""

from dataclasses import dataclass
from typing import Annotated

import msgspec
import structlog
from aiohttp import web
from msgspec import Meta

from servicekit.clock import Clock
from supervisor.decide.registration import with_request
from supervisor.domain.ids import JobName
from supervisor.domain.job import RequestKind, SupervisedJob, UserRequest
from supervisor.identity.tokens import Operator
from supervisor.ingest.http import Authenticate, body, done, printable, require_principal
from supervisor.store.interface import Store

_MAX_BYTES = 4096

_log = structlog.get_logger()


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The job that is meant."""

    job: Annotated[str, Meta(min_length=1, max_length=600)]


class Asked(Target, frozen=True, kw_only=True):
    """What is asked of a job: `reason` says why, for people."""

    reason: Annotated[str, Meta(max_length=256)] = ""

    def __post_init__(self) -> None:
        printable("reason", self.reason)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEndpoints:
    """Endpoints for operators. A request is stored with its job, and stands until it is taken back."""

    store: Store
    authenticate: Authenticate
    clock: Clock

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/jobs/suspend", self.suspend),
            web.post("/v1/jobs/stop", self.stop),
            web.post("/v1/jobs/resume", self.resume),
        ]

    async def suspend(self, request: web.Request) -> web.Response:
        """Asks to save the job and to keep it suspended."""
        return await self._ask(request, RequestKind.SUSPEND)

    async def stop(self, request: web.Request) -> web.Response:
        """Asks to save the job and to end it for good."""
        return await self._ask(request, RequestKind.STOP)

    async def resume(self, request: web.Request) -> web.Response:
        """Takes a request back; that there is none is not an error."""
        operator = await require_principal(Operator, request, self.authenticate)
        target = await body(request, Target, _MAX_BYTES)
        await self._put(target.job, None)
        _log.warning("job.request_withdrawn", job=target.job, by=operator.name)
        return done()

    async def _ask(self, request: web.Request, kind: RequestKind) -> web.Response:
        operator = await require_principal(Operator, request, self.authenticate)
        asked = await body(request, Asked, _MAX_BYTES)
        reason = asked.reason.strip().rstrip(".")
        await self._put(asked.job, UserRequest(kind=kind, by=operator.name, reason=reason, at=self.clock.now()))
        _log.warning("job.requested", job=asked.job, request=kind, by=operator.name, reason=reason)
        return done()

    async def _put(self, job: str, request: UserRequest | None) -> None:
        def change(known: SupervisedJob | None) -> SupervisedJob:
            return with_request(known, request)

        await self.store.put_job(JobName(job), change)
