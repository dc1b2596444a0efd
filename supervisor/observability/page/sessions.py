"""Signs viewers in, and knows the sessions of their browsers."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs

from aiohttp import web

from servicekit.clock import Clock
from supervisor.identity.tokens import Viewer
from supervisor.ingest.errors import ForeignTokenError, MalformedError, OversizedError
from supervisor.ingest.http import Authenticate

COOKIE = "job_supervisor_viewer"
HOURS = 12
_MAX_BYTES = 16 * 1024
_OWN_SITE = ("same-origin", "none")
"""Values of Sec-Fetch-Site for a request of our own page, and for one that the user typed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewerSession:
    """A viewer's access, `until` an instant (Unix seconds; None: unlimited). `browser`: a session cookie gives it."""

    until: float | None
    browser: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewerSessions:
    """Checks and starts sessions; `sign` makes a viewer token that is valid until an instant."""

    authenticate: Authenticate
    sign: Callable[[float], str]
    clock: Clock

    async def of(self, request: web.Request) -> ViewerSession | None:
        """The session of a request; None if it has neither a token nor a cookie.

        Raises:
            BadTokenError: The token is invalid.
            ForeignTokenError: The token is not a viewer's.
        """
        authorization, cookie = request.headers.get("Authorization"), request.cookies.get(COOKIE)
        if authorization is not None:
            return ViewerSession(until=(await self._viewer(authorization)).until, browser=False)
        if cookie is not None:
            return ViewerSession(until=(await self._viewer(f"Bearer {cookie}")).until, browser=True)
        return None

    async def sign_in(self, request: web.Request, answer: web.Response) -> None:
        """Sets a session cookie with a token of its own, which lasts 12 hours and never longer than the token sent.

        Raises:
            BadTokenError: The token is invalid.
            ForeignTokenError: The token is not a viewer's.
            OversizedError: The body is too large for the form.
            MalformedError: The body is not the form, or another site sent it.
        """
        own_site(request)
        viewer = await self._viewer(f"Bearer {await _token(request)}")
        now = self.clock.wall()
        longest = now + HOURS * 3600
        until = longest if viewer.until is None else min(longest, viewer.until)
        answer.set_cookie(
            COOKIE,
            self.sign(until),
            max_age=max(0, int(until - now)),
            path="/",
            secure=request.secure,
            httponly=True,
            samesite="Strict",
        )

    async def _viewer(self, authorization: str) -> Viewer:
        principal = await self.authenticate(authorization)
        if not isinstance(principal, Viewer):
            raise ForeignTokenError("a viewer token is needed")
        return principal


def own_site(request: web.Request) -> None:
    """Refuses a request that another site's page has sent.

    Raises:
        MalformedError: Another site sent it.
    """
    if request.headers.get("Sec-Fetch-Site", "none") not in _OWN_SITE:
        raise MalformedError("the request was sent by another site")


async def _token(request: web.Request) -> str:
    try:
        await request.content.readexactly(_MAX_BYTES + 1)
    except asyncio.IncompleteReadError as error:  # All of it was read.
        body = error.partial
    except web.RequestPayloadError as error:
        raise MalformedError("the body is not framed as HTTP has it") from error
    else:
        raise OversizedError(f"more than {_MAX_BYTES} bytes")
    try:
        form = parse_qs(body.decode("ascii"), keep_blank_values=True, strict_parsing=True, max_num_fields=5)
        (token,) = form["token"]
    except (LookupError, ValueError) as error:
        raise MalformedError("the form has one field, token") from error
    return token.strip()
