"""Signs people in, and knows the sessions of their browsers."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from aiohttp import web

from servicekit.clock import Clock
from supervisor.domain.asking import NotPermittedError
from supervisor.domain.ids import STANDALONE, JobName, kind_of
from supervisor.identity.people import READ, People
from supervisor.identity.tokens import (
    BadTokenError,
    FormToken,
    Operator,
    Person,
    Reader,
    Session,
    SignInCode,
    Tokens,
    Viewer,
    is_ours,
    token_in,
)
from supervisor.ingest.errors import ForeignTokenError, MalformedError
from supervisor.ingest.http import Authenticate
from supervisor.observability.page.forms import posted

COOKIE = "job_supervisor_viewer"
HOURS, HOURS_OF_PEOPLE = 12, 1
"""The longest session of a token of ours, and of a user of the cluster, whose groups are those of the sign-in."""
_FORM_SECONDS = 3600.0
_MAX_COOKIE = 3800
"""Browsers keep no cookie of more than 4,096 bytes, its name and attributes included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSession:
    """Somebody's access, `until` an instant (Unix seconds; None: unlimited). `browser`: a session cookie gives it."""

    who: Reader
    until: float | None
    browser: bool

    @property
    def name(self) -> str:
        """Who it is; empty for viewers, who have no names."""
        return self.who.name if isinstance(self.who, Operator | Person) else ""

    @property
    def identity(self) -> str:
        """Who it is, also beside somebody of the same name whom somebody else vouches for."""
        return f"{type(self.who).__name__}:{self.name}"

    def steers(self, job: JobName) -> bool:
        """Whether they may be allowed to suspend, stop and resume a job: operators only those of launchers."""
        return self.acts and (isinstance(self.who, Person) or kind_of(job) == STANDALONE)

    @property
    def acts(self) -> bool:
        """Whether they may be allowed to do anything but look."""
        return bool(self.name)


@dataclass(slots=True)
class UsedCodes:
    """Remembers which sign-in codes were used. Codes from before `began` (Unix seconds) count as used."""

    began: float
    _until: dict[str, float] = field(default_factory=dict)

    def use(self, code: SignInCode, now: float) -> None:
        """Uses a code.

        Raises:
            BadTokenError: It was used before.
        """
        self._until = {known: until for known, until in self._until.items() if until > now}
        if code.issued < self.began or code.id in self._until:
            raise BadTokenError("the code was used before")
        self._until[code.id] = code.until


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSessions:
    """Checks and starts sessions.

    Attributes:
        authenticate: Returns the sender of an Authorization header.
        tokens: Makes and checks sessions, and the tokens of forms.
        clock: The supervisor's clock.
        codes: The sign-in codes that were used.
        people: The users of the cluster, if they may sign in.
    """

    authenticate: Authenticate
    tokens: Tokens
    clock: Clock
    codes: UsedCodes
    people: People | None = None

    async def of(self, request: web.Request) -> PageSession | None:
        """The session of a request; None if it has neither a token nor a cookie.

        Raises:
            BadTokenError: The token is invalid.
            ForeignTokenError: The token is not a person's.
            NotPermittedError: The person may not see the page.
            AuthenticationUnavailableError: That cannot be known at present.
        """
        authorization, cookie = request.headers.get("Authorization"), request.cookies.get(COOKIE)
        if authorization is not None:
            who = await self._reader(authorization, request.remote or "?")
            return PageSession(who=who, until=who.until, browser=False)
        if cookie is not None:
            session = self.tokens.authenticate(f"Bearer {cookie}")
            if not isinstance(session, Session):
                raise ForeignTokenError("a session is needed")
            return PageSession(who=await self._readable(session.who), until=session.until, browser=True)
        return None

    async def sign_in(self, request: web.Request, answer: web.Response) -> None:
        """Sets a session cookie with a token of its own, which lasts HOURS and never longer than the token sent.

        Raises:
            BadTokenError: The token is invalid, or the code was used before.
            ForeignTokenError: The token is not a person's.
            NotPermittedError: The person may not see the page.
            AuthenticationUnavailableError: That cannot be known at present.
            OversizedError: The body is too large for the form.
            MalformedError: The body is not the form, or another site sent it.
        """
        who = await self._signing_in(await posted(request), request.remote or "?")
        now = self.clock.wall()
        longest = now + (HOURS_OF_PEOPLE if isinstance(who, Person) else HOURS) * 3600
        until = longest if who.until is None else min(longest, who.until)
        session = self.tokens.session(who, until)
        if len(session) > _MAX_COOKIE:
            name = PageSession(who=who, until=until, browser=True).name
            raise NotPermittedError(f"{name} is in more groups than a cookie can hold.")
        answer.set_cookie(
            COOKIE,
            session,
            max_age=max(0, int(until - now)),
            path="/",
            secure=request.secure,
            httponly=True,
            samesite="Strict",
        )

    def code(self, text: str) -> SignInCode:
        """Reads a sign-in code without using it.

        Raises:
            BadTokenError: It is none.
        """
        found = self.tokens.authenticate(f"Bearer {text}")
        if not isinstance(found, SignInCode):
            raise BadTokenError("no sign-in code")
        return found

    def form_token(self, session: PageSession, purpose: str) -> str:
        """Makes the token of a form."""
        return self.tokens.form(session.identity, purpose, self.clock.wall() + _FORM_SECONDS)

    def check_form(self, session: PageSession, purposes: Collection[str], token: str) -> None:
        """Checks that a form was shown to the same person, for one of these purposes.

        Raises:
            MalformedError: It was not, or more than an hour ago.
        """
        try:
            shown = self.tokens.authenticate(f"Bearer {token}")
        except BadTokenError as error:
            raise MalformedError("the form is too old, or was not made here: open it again") from error
        if shown not in [FormToken(by=session.identity, purpose=purpose) for purpose in purposes]:
            raise MalformedError("the form was made for somebody else, or for something else")

    async def _signing_in(self, fields: Mapping[str, str], peer: str) -> Reader:
        match fields:
            case {"token": token}:
                return await self._reader(f"Bearer {token.strip()}", peer)
            case {"code": text}:
                code = self.code(text)
                self.codes.use(code, self.clock.wall())
                return code.who
        raise MalformedError("the form has a token or a code")

    async def _reader(self, authorization: str, peer: str) -> Reader:
        if self.people is not None and not is_ours(token := token_in(authorization), otherwise=False):
            return await self._readable(await self.people.person(token, peer))
        principal = await self.authenticate(authorization)
        if not isinstance(principal, Viewer):
            raise ForeignTokenError("the token of a viewer or an operator is needed")
        return principal

    async def _readable(self, who: Reader) -> Reader:
        """Returns a reader who may see the page: what a user of the cluster may is asked for again and again."""
        if isinstance(who, Person) and not (self.people and await self.people.may(who, READ)):
            raise NotPermittedError(f"{who.name} may not {READ}, which is the right to see this page.")
        return who
