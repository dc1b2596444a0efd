"""Makes and checks the supervisor's own tokens, and authenticates the sender of an Authorization header.

A token identifies one agent and its node, one launcher, the processes of one run of a job, an operator or a viewer. It
is signed with the supervisor's secret. On a cluster, pods have tokens of the API server instead.
"""

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import jwt

from servicekit.failpoints import failpoint
from servicekit.files import draft_beside
from supervisor.domain.ids import Host, JobName, is_name
from supervisor.failpoints import At

SECRET_FILE = "token-secret"  # noqa: S105 - the file's name, not a secret
_ALGORITHM = "HS256"
_AUDIENCE = "elastic-job-supervisor"
_SECRET_BYTES = 32
_CODE_BYTES = 16
_MAX_VERIFIED = 4096
"""The tokens whose claims are remembered. Verifying one takes as long as handling the report that came with it."""


class BadTokenError(Exception):
    """The token is missing, forged, expired or malformed. The caller needs another one."""


class ForeignPodError(Exception):
    """The token is valid, but its pod is neither an agent's nor a job's."""


class AuthenticationUnavailableError(Exception):
    """The supervisor cannot check the token at present. The caller tries again later."""


class SecretError(Exception):
    """The secret's file cannot be trusted; an administrator has to act."""


@dataclass(frozen=True, slots=True)
class AgentPrincipal:
    """An agent may report for one node."""

    node: Host


@dataclass(frozen=True, slots=True)
class LauncherPrincipal:
    """A launcher may register jobs and report for its own jobs."""

    name: str


@dataclass(frozen=True, slots=True)
class ProcessPrincipal:
    """A training process may report for one run of one job.

    The token of a pod names the pod but no run: then `run` is None and stands for the job's run at the first message,
    and `host` is the pod. With other tokens `host` is None, and the process names its host.
    """

    job: JobName
    uid: str
    run: int | None
    host: Host | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """A viewer may read the status. The token expires at `until` (Unix seconds); None: never."""

    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator(Viewer):
    """An operator may also steer jobs, drain nodes and hold drills; `name` appears in log, reasons and notices."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A user of the cluster, whose rights are the cluster's to say. `until` is as with a viewer.

    Attributes:
        name: The name of the user, as the cluster writes it.
        uid: Of the user; may be empty.
        groups: Of the user.
        extra: What else an authorizer of the cluster may ask for.
    """

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()
    until: float | None = None


Reader = Viewer | Person
"""Whoever may see the page, and with more rights ask for something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A browser's access to the page, and to nothing else, `until` an instant (Unix seconds)."""

    who: Reader
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInCode:
    """Signs somebody in once, before `until` (Unix seconds). No other code has its `id`."""

    who: Viewer
    id: str
    issued: float
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FormToken:
    """Is in a form that was shown to that person, for that purpose, and in no other one."""

    by: str
    purpose: str


Principal = AgentPrincipal | LauncherPrincipal | ProcessPrincipal | Viewer | Session | SignInCode | FormToken


class Tokens:
    """Makes and checks tokens that are signed with a secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._verified = lru_cache(_MAX_VERIFIED)(self._verify)  # What it raises is not remembered.

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Reads the secret of a data directory, or creates it at the first start (mode 0600).

        Raises:
            SecretError: The file is readable by others, or too short.
        """
        path = directory / SECRET_FILE
        if not path.exists():
            # A complete file is linked into place, so that two processes that start at once agree on one secret.
            with draft_beside(path) as file, suppress(FileExistsError):  # Another process was first.
                file.write_bytes(secrets.token_hex(_SECRET_BYTES).encode())
                failpoint(At.SECRET_WRITTEN)
                path.hardlink_to(file)
                failpoint(At.SECRET_LINKED)
        if path.stat().st_mode & 0o077:
            raise SecretError(f"{path} must be readable by its owner alone (chmod 600)")
        secret = path.read_bytes()
        if len(secret) < _SECRET_BYTES:
            raise SecretError(f"{path} is too short to be a secret")
        return cls(secret)

    def agent(self, node: str, until: float | None = None) -> str:
        """Makes a token for the agent of one node, valid `until` an instant (Unix seconds), or for ever (None)."""
        return self._sign({"kind": "agent", "node": node}, until)

    def launcher(self, name: str, until: float | None = None) -> str:
        """Makes a token for one launcher, with the same validity as `agent`."""
        return self._sign({"kind": "launcher", "name": name}, until)

    def process(self, job: str, uid: str, run: int) -> str:
        """Makes a token for the processes of one run of a job; `uid` excludes a later job of the same name."""
        return self._sign({"kind": "process", "job": job, "uid": uid, "run": run})

    def viewer(self, until: float | None = None) -> str:
        return self._sign({"kind": "viewer"}, until)

    def operator(self, name: str, until: float | None = None) -> str:
        return self._sign({"kind": "operator", "name": name}, until)

    def session(self, who: Reader, until: float) -> str:
        """Makes a token for a browser's session."""
        return self._sign({"kind": "session", **_claims(who)}, until)

    def code(self, who: Viewer, now: float, until: float) -> str:
        """Makes a code that signs somebody in once."""
        claims = {"kind": "code", "id": secrets.token_urlsafe(_CODE_BYTES), "iat": now, **_claims(who)}
        return self._sign(claims, until)

    def link(self, who: Viewer, base: str, now: float, seconds: float) -> str:
        """Makes the address, below the URL of the page, that signs somebody in once within so many seconds."""
        return f"{base.rstrip('/')}/status/login?code={self.code(who, now, now + seconds)}"

    def form(self, by: str, purpose: str, until: float) -> str:
        """Makes the token of a form, which another site's page cannot have."""
        return self._sign({"kind": "form", "by": by, "purpose": purpose}, until)

    def authenticate(self, authorization: str | None) -> Principal:
        """Returns the principal that sent an Authorization header.

        Raises:
            BadTokenError: The token is missing or invalid.
        """
        principal, until = self._verified(token_in(authorization))
        if until is not None and until <= time.time():  # It may have expired since it was verified.
            raise BadTokenError("the token has expired")
        return principal

    def _verify(self, token: str) -> tuple[Principal, float | None]:
        """Returns the principal of a token, and when the token expires."""
        try:
            claims = jwt.decode(token, self._secret, algorithms=[_ALGORITHM], audience=_AUDIENCE)
        except jwt.ExpiredSignatureError as error:  # Raised only after the signature was verified.
            raise BadTokenError("the token has expired") from error
        except (
            jwt.InvalidTokenError,
            ValueError,
            OverflowError,
        ) as error:  # Bytes that are not text; an infinite `exp`.
            raise BadTokenError("the token is not from this supervisor") from error
        until = float(claims["exp"]) if "exp" in claims else None
        return _principal(claims, until), until

    def _sign(self, claims: dict[str, Any], until: float | None = None) -> str:
        expiry = {} if until is None else {"exp": int(until)}
        return jwt.encode({**claims, **expiry, "aud": _AUDIENCE}, self._secret, algorithm=_ALGORITHM)


@dataclass(frozen=True, slots=True)
class Authenticator:
    """Accepts the supervisor's own tokens, and on a cluster those of pods, whose principals `pod` returns."""

    tokens: Tokens
    pod: Callable[[str], Awaitable[Principal]] | None = None

    async def authenticate(self, authorization: str | None) -> Principal:
        """Returns the principal that sent an Authorization header.

        Raises:
            BadTokenError: The token is missing or invalid.
            ForeignPodError: The pod is neither an agent's nor a job's.
            AuthenticationUnavailableError: The token cannot be checked at present.
        """
        if self.pod is None:
            return self.tokens.authenticate(authorization)
        token = token_in(authorization)
        return self.tokens.authenticate(authorization) if is_ours(token) else await self.pod(token)


def is_ours(token: str, *, otherwise: bool = True) -> bool:
    """Whether a token is to be checked by our own secret: API servers sign with asymmetric keys.

    Of what is no such token, it is `otherwise`: our own check refuses it, and some clusters have tokens of other forms.
    """
    try:
        return jwt.get_unverified_header(token).get("alg") == _ALGORITHM
    except (jwt.InvalidTokenError, ValueError):
        return otherwise


def token_in(authorization: str | None) -> str:
    """Returns the bearer token of an Authorization header.

    Raises:
        BadTokenError: The header has no bearer token.
    """
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise BadTokenError("no bearer token")
    return token


def _principal(claims: Mapping[str, Any], until: float | None) -> Principal:
    match claims:
        case {"kind": "agent", "node": str(node)} if is_name(node):
            return AgentPrincipal(Host(node))
        case {"kind": "launcher", "name": str(name)} if is_name(name):
            return LauncherPrincipal(name)
        case {"kind": "process", "job": str(job), "uid": str(uid), "run": int(run)}:
            return ProcessPrincipal(JobName(job), uid, run)
        case {"kind": "viewer"}:
            return Viewer(until=until)
        case {"kind": "operator", "name": str(name)} if is_name(name):
            return Operator(name=name, until=until)
        case {"kind": "session", "who": str()} if until is not None:
            return Session(who=_reader(claims, until), until=until)
        case {"kind": "code", "who": str(), "id": str(code), "iat": int(issued) | float(issued)} if until is not None:
            who = _reader(claims, until)
            if isinstance(who, Viewer):
                return SignInCode(who=replace(who, until=None), id=code, issued=issued, until=until)
        case {"kind": "form", "by": str(by), "purpose": str(purpose)}:
            return FormToken(by=by, purpose=purpose)
    raise BadTokenError("the token identifies no principal")


def _claims(who: Reader) -> dict[str, Any]:
    """Returns the claims about a reader, which `_reader` reads."""
    match who:
        case Person(name=name, uid=uid, groups=groups, extra=extra):
            return {"who": "person", "name": name, "uid": uid, "groups": groups, "extra": dict(extra)}
        case Operator(name=name):
            return {"who": "operator", "name": name}
        case _:
            return {"who": "viewer"}


def _reader(claims: Mapping[str, Any], until: float) -> Reader:
    match claims:
        case {"who": "person", "name": str(name), "uid": str(uid), "groups": list(groups), "extra": dict(extra)}:
            more = tuple((key, tuple(values)) for key, values in extra.items())
            return Person(name=name, uid=uid, groups=tuple(groups), extra=more, until=until)
        case {"who": "operator", "name": str(name)}:
            return Operator(name=name, until=until)
        case {"who": "viewer"}:
            return Viewer(until=until)
    raise BadTokenError("the token identifies no principal")
