"""Lets people in: the login form, signing in and out, and the session of a request."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from aiohttp import web

from supervisor.domain.asking import NotPermittedError
from supervisor.identity.tokens import AuthenticationUnavailableError, BadTokenError, ForeignPodError
from supervisor.ingest.errors import CODES, ForeignTokenError
from supervisor.observability.page.answers import html_page, page_root, see_other
from supervisor.observability.page.forms import own_site
from supervisor.observability.page.rendering import PageRenderer
from supervisor.observability.page.sessions import COOKIE, HOURS, PageSession, PageSessions
from supervisor.refusals import Refusals, Wire

_REFUSED: Mapping[type[Exception], tuple[int, str]] = MappingProxyType(
    {
        BadTokenError: (
            401,
            "This was not issued by this supervisor, it has expired, or it is a link that was used before.",
        ),
        ForeignTokenError: (403, "This token is of another kind: one of a viewer or an operator is needed."),
        ForeignPodError: (403, "This token is of another kind: one of a viewer or an operator is needed."),
        NotPermittedError: (403, ""),
        AuthenticationUnavailableError: (503, "This token cannot be checked right now. Try again."),
    }
)
"""The status and the message of the login form for each refusal; without a message the refusal's own is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageGate:
    """Serves the login form. A link with a code leads to it too: nothing that only looks at the link uses it up."""

    sessions: PageSessions
    renderer: PageRenderer
    refusals: Refusals

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/status/login", self.form),
            web.post("/status/login", self.login),
            web.post("/status/logout", self.logout),
        ]

    async def session(self, request: web.Request) -> PageSession | web.Response:
        """The session of a request, or the login form."""
        try:
            session = await self.sessions.of(request)
        except tuple(_REFUSED) as error:
            if "Authorization" in request.headers:
                raise
            return self._refused(error, page_root(request))
        return self._form(page_root(request)) if session is None else session

    async def form(self, request: web.Request) -> web.Response:
        """Serves the login form; with a valid `code` in the address, one that needs a button alone."""
        code, root = request.query.get("code", ""), page_root(request)
        if not code:
            return self._form(root, status=200)
        try:
            who = self.sessions.code(code).who
        except BadTokenError as error:
            return self._refused(error, root)
        name = PageSession(who=who, until=None, browser=True).name
        return html_page(self.renderer.render("sign_in.html", hours=HOURS, code=code, name=name, root=root))

    async def login(self, request: web.Request) -> web.Response:
        """Starts a session with the token or the code from the form."""
        answer = see_other("../")
        try:
            await self.sessions.sign_in(request, answer)
        except tuple(_REFUSED) as error:
            return self._refused(error, page_root(request))
        return answer

    async def logout(self, request: web.Request) -> web.Response:
        """Ends the browser's session by deleting its cookie.

        Raises:
            MalformedError: Another site sent the request.
        """
        own_site(request)
        answer = see_other("../")
        answer.del_cookie(COOKIE, path="/", secure=request.secure, httponly=True, samesite="Strict")
        return answer

    def _form(self, root: str, why: str = "", status: int = 401) -> web.Response:
        people = self.sessions.people is not None
        return html_page(self.renderer.render("login.html", hours=HOURS, why=why, people=people, root=root), status)

    def _refused(self, error: Exception, root: str) -> web.Response:
        code = CODES.get(type(error))
        if code is not None:
            self.refusals.add(Wire.HTTP, code, str(error))
        status, message = _REFUSED[type(error)]
        return self._form(root, message or str(error), status)
