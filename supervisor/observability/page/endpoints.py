"""The page at `/` and `/status`, what it is made of, and how one signs in."""

from asyncio import TimerHandle, get_running_loop
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from aiohttp import web

from servicekit.clock import Clock
from supervisor.fanout.lines import LineStream
from supervisor.identity.tokens import AuthenticationUnavailableError, BadTokenError, ForeignPodError
from supervisor.ingest.errors import ForeignTokenError, TooManyError, code_of
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
_KEPT = {**_HEADERS, "Cache-Control": "public, max-age=86400, immutable"}
"""Of files whose address is another one when they are."""

_REFUSED: Mapping[type[Exception], tuple[int, str]] = MappingProxyType(
    {
        BadTokenError: (401, "This token is not one of this supervisor's, or it has expired."),
        ForeignTokenError: (403, "This token is for something else: it takes a viewer token."),
        ForeignPodError: (403, "This token is for something else: it takes a viewer token."),
        AuthenticationUnavailableError: (503, "This token cannot be checked at present. Try again."),
    }
)
"""What somebody is told who signs in, or has."""

_LONGEST_TIMER_SECONDS = 86400.0 * 7


@dataclass(frozen=True, slots=True, kw_only=True)
class PageEndpoints:
    """`/`, `/status…`; see `routes`."""

    snapshot: Callable[[], StatusSnapshot]
    renderer: Renderer
    viewers: Viewers
    sessions: Sessions
    refusals: Refusals
    clock: Clock

    def routes(self) -> list[web.RouteDef]:
        """What is served here."""
        return [
            web.get("/", self.page),
            web.get("/status", self.page),
            web.get("/status/stream", self.stream),
            web.post("/status/login", self.login),
            web.post("/status/logout", self.logout),
            *(web.get(f"/status/{asset.name}", _served(asset)) for asset in self.renderer.assets.values()),
        ]

    async def page(self, request: web.Request) -> web.Response:
        """The page, or the form for those whom nobody knows."""
        try:
            session = await self.sessions.of(request)
        except tuple(_REFUSED) as error:
            if "Authorization" in request.headers:
                raise
            return self._sign_in_again(error)
        if session is None:
            return _html(self.renderer.login(HOURS), status=401)
        return _html(self.renderer.page(self.snapshot(), signed_in=session.browser))

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """The changing part of the page, whenever it has changed."""
        session = await self.sessions.of(request)
        if session is None:
            raise BadTokenError("no bearer token, and nobody has signed in")
        if self.viewers.full:
            raise TooManyError("as many look as may look at a time")
        lines = LineStream(request, self.refusals)
        await lines.prepare()
        end = self._until(session, lines)
        self.viewers.attach(lines)
        try:
            return await lines.serve()
        finally:
            self.viewers.detach(lines)
            if end is not None:
                end.cancel()

    async def login(self, request: web.Request) -> web.Response:
        """Takes a token from the form."""
        answer = _back()
        try:
            await self.sessions.sign_in(request, answer)
        except tuple(_REFUSED) as error:
            return self._sign_in_again(error)
        return answer

    async def logout(self, request: web.Request) -> web.Response:
        """Forgets who looks."""
        answer = _back()
        self.sessions.sign_out(request, answer)
        return answer

    def _sign_in_again(self, error: Exception) -> web.Response:
        code = code_of(error)
        if code is not None:
            self.refusals.add(Wire.HTTP, code, str(error))
        status, why = _REFUSED[type(error)]
        return _html(self.renderer.login(HOURS, why), status=status)

    def _until(self, session: Session, lines: LineStream) -> TimerHandle | None:
        """Ends a stream with its session."""
        if session.until is None:
            return None
        left = min(max(0.0, session.until - self.clock.wall()), _LONGEST_TIMER_SECONDS)
        return get_running_loop().call_later(left, lines.finish, "the session is over")


def _html(text: str, status: int = 200) -> web.Response:
    return web.Response(text=text, status=status, content_type="text/html", headers=_HEADERS)


def _back() -> web.Response:
    return web.Response(status=303, headers={**_HEADERS, "Location": "../"})


def _served(asset: Asset) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def serve(_request: web.Request) -> web.Response:
        return web.Response(body=asset.body, content_type=asset.content_type, charset="utf-8", headers=_KEPT)

    return serve
