"""The endpoints of the status page: the page itself, its assets, its stream, and sign-in."""

import asyncio
from asyncio import TimerHandle, get_running_loop
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from aiohttp import web

from servicekit.clock import Clock
from supervisor.domain.ids import JobName
from supervisor.fanout.lines import LineStream
from supervisor.identity.tokens import AuthenticationUnavailableError, BadTokenError, ForeignPodError
from supervisor.ingest.errors import ForeignTokenError, TooManyError, code_of
from supervisor.observability.page.job import JobSnapshot
from supervisor.observability.page.rendering import Asset, Renderer
from supervisor.observability.page.sessions import HOURS, Session, Sessions
from supervisor.observability.page.viewers import Viewers
from supervisor.observability.snapshot import StatusSnapshot
from supervisor.refusals import Refusals, Wire

_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
            "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        ),
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Referrer-Policy": "same-origin",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cache-Control": "no-store",
    }
)
_ASSET_HEADERS = {**_HEADERS, "Cache-Control": "public, max-age=86400, immutable"}
"""An asset's URL contains a hash of its content."""

_REFUSED: Mapping[type[Exception], tuple[int, str]] = MappingProxyType(
    {
        BadTokenError: (401, "This token was not issued by this supervisor, or it has expired."),
        ForeignTokenError: (403, "This token is of another kind: a viewer token is needed."),
        ForeignPodError: (403, "This token is of another kind: a viewer token is needed."),
        AuthenticationUnavailableError: (503, "This token cannot be checked right now. Try again."),
    }
)
"""The status and the message of the login form for each refusal."""

_LONGEST_TIMER_SECONDS = 86400.0 * 7


@dataclass(frozen=True, slots=True, kw_only=True)
class PageEndpoints:
    snapshot: Callable[[], StatusSnapshot]
    job: Callable[[JobName], JobSnapshot | None]
    renderer: Renderer
    viewers: Viewers
    sessions: Sessions
    refusals: Refusals
    clock: Clock

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/", self.page),
            web.get("/status", self.page),
            web.get("/status/stream", self.stream),
            web.get("/status/jobs/{job:.+}", self.job_page),
            web.post("/status/login", self.login),
            web.post("/status/logout", self.logout),
            *(web.get(f"/status/{asset.name}", _served(asset)) for asset in self.renderer.assets.values()),
        ]

    async def page(self, request: web.Request) -> web.Response:
        """Serves the page, or the login form without a session."""
        session = await self._session(request)
        if isinstance(session, web.Response):
            return session
        return _html(self.renderer.page(self.snapshot(), signed_in=session.browser))

    async def job_page(self, request: web.Request) -> web.Response:
        """Serves the page of one job, or the login form without a session."""
        session = await self._session(request)
        if isinstance(session, web.Response):
            return session
        found, root = self.job(JobName(request.match_info["job"])), _root(request)
        if found is None:
            return _html(self.renderer.no_job(root, signed_in=session.browser), status=404)
        # In a thread: a job may have thousands of hosts.
        text = await asyncio.to_thread(self.renderer.job, found, root, signed_in=session.browser)
        return _html(text)

    async def _session(self, request: web.Request) -> Session | web.Response:
        """The session of a request, or the login form."""
        try:
            session = await self.sessions.of(request)
        except tuple(_REFUSED) as error:
            if "Authorization" in request.headers:
                raise
            return self._login_refused(error, _root(request))
        return _html(self.renderer.login(HOURS, root=_root(request)), status=401) if session is None else session

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """Streams the content of the page whenever it changes."""
        session = await self.sessions.of(request)
        if session is None:
            raise BadTokenError("no bearer token and no session")
        if self.viewers.full:
            raise TooManyError("the maximum number of viewers is reached")
        lines = LineStream(request, self.refusals)
        await lines.prepare()
        end = self._end_with_session(session, lines)
        self.viewers.attach(lines)
        try:
            return await lines.serve()
        finally:
            self.viewers.detach(lines)
            if end is not None:
                end.cancel()

    async def login(self, request: web.Request) -> web.Response:
        """Starts a session with the token from the form."""
        answer = _redirect()
        try:
            await self.sessions.sign_in(request, answer)
        except tuple(_REFUSED) as error:
            return self._login_refused(error, _root(request))
        return answer

    async def logout(self, request: web.Request) -> web.Response:
        """Ends the browser's session."""
        answer = _redirect()
        self.sessions.sign_out(request, answer)
        return answer

    def _login_refused(self, error: Exception, root: str) -> web.Response:
        code = code_of(error)
        if code is not None:
            self.refusals.add(Wire.HTTP, code, str(error))
        status, message = _REFUSED[type(error)]
        return _html(self.renderer.login(HOURS, message, root), status=status)

    def _end_with_session(self, session: Session, lines: LineStream) -> TimerHandle | None:
        if session.until is None:
            return None
        left = min(max(0.0, session.until - self.clock.wall()), _LONGEST_TIMER_SECONDS)
        return get_running_loop().call_later(left, lines.finish, "the session is over")


def _root(request: web.Request) -> str:
    """The way from the address of a request to that of the page, which may be below another server's path."""
    return "../" * (request.rel_url.raw_path.count("/") - 1)


def _html(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html", headers=_HEADERS)


def _redirect() -> web.Response:
    return web.Response(status=303, headers={**_HEADERS, "Location": "../"})


def _served(asset: Asset) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def serve(_request: web.Request) -> web.Response:
        return web.Response(body=asset.body, content_type=asset.content_type, charset="utf-8", headers=_ASSET_HEADERS)

    return serve
