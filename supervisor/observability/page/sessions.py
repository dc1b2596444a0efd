"""Who may look: a viewer's token in the Authorization header, or a browser that has signed in with one."""

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
"""What a browser says of a request of our own page, and of one that its user has typed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Somebody who may look until then (Unix seconds; None: for ever). `browser`: one that has signed in."""

    until: float | None
    browser: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """`sign` makes a viewer's token that is good until an instant."""

    authenticate: Authenticate
    sign: Callable[[float], str]
    clock: Clock

    async def of(self, request: web.Request) -> Session | None:
        """Who asks; None where nobody says who he is.

        Raises:
            BadTokenError: A token that is no good.
            ForeignTokenError: One for something else.
        """
        authorization, cookie = request.headers.get("Authorization"), request.cookies.get(COOKIE)
        if authorization is not None:
            return Session(until=(await self._viewer(authorization)).until, browser=False)
        if cookie is not None:
            return Session(until=(await self._viewer(f"Bearer {cookie}")).until, browser=True)
        return None

    async def sign_in(self, request: web.Request, answer: web.Response) -> None:
        """Has the browser keep a token of its own, which ends after half a day and never after the one that it sent.

        Raises:
            BadTokenError: A token that is no good.
            ForeignTokenError: One for something else.
            OversizedError: More than a form.
            MalformedError: No form, or another site's.
        """
        _own_site(request)
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

    def sign_out(self, request: web.Request, answer: web.Response) -> None:
        """Has the browser forget it.

        Raises:
            MalformedError: It is another site that asks.
        """
        _own_site(request)
        answer.del_cookie(COOKIE, path="/", secure=request.secure, httponly=True, samesite="Strict")

    async def _viewer(self, authorization: str) -> Viewer:
        principal = await self.authenticate(authorization)
        if not isinstance(principal, Viewer):
            raise ForeignTokenError("this is for a viewer token")
        return principal


def _own_site(request: web.Request) -> None:
    if request.headers.get("Sec-Fetch-Site", "none") not in _OWN_SITE:
        raise MalformedError("another site's page has sent this")


async def _token(request: web.Request) -> str:
    try:
        await request.content.readexactly(_MAX_BYTES + 1)
    except asyncio.IncompleteReadError as error:  # All of it was read.
        return _field(error.partial)
    except web.RequestPayloadError as error:
        raise MalformedError("the body is not framed as HTTP has it") from error
    raise OversizedError(f"more than {_MAX_BYTES} bytes")


def _field(body: bytes) -> str:
    try:
        (token,) = parse_qs(body.decode("ascii"), keep_blank_values=True, strict_parsing=True, max_num_fields=5)[
            "token"
        ]
    except (LookupError, ValueError) as error:
        raise MalformedError("the form has one field, token") from error
    return token.strip()
