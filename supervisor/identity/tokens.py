"""Stand-alone tokens: signed with a secret in a file that only its owner may read.

Each names one agent and its node, one launcher, one job and run, one operator, or an onlooker; nothing else can be
done with it.
"""

import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import jwt

from servicekit.failpoints import failpoint
from servicekit.files import draft_beside
from supervisor.domain.ids import Host, JobName, is_name
from supervisor.failpoints import At

SECRET_FILE = "token-secret"  # noqa: S105 - the file's name, not a secret
ALGORITHM = "HS256"
_AUDIENCE = "elastic-job-supervisor"
_SECRET_BYTES = 32


class BadTokenError(Exception):
    """The token is missing, forged, expired or of another kind: the caller must get a good one."""


class ForeignPodError(Exception):
    """The token is a pod's that has nothing to say here."""


class AuthenticationUnavailableError(Exception):
    """Whose token it is cannot be said at present: try again later."""


class SecretError(Exception):
    """The secret's file cannot be trusted; the operator has to act."""


@dataclass(frozen=True, slots=True)
class Agent:
    """May report for one node."""

    node: Host


@dataclass(frozen=True, slots=True)
class Launcher:
    """May register jobs, and speak for those that it registered."""

    name: str


@dataclass(frozen=True, slots=True)
class Process:
    """May speak for a process of one run of one job.

    A pod's token names no run, but the pod: `run` is None for the one that the job is in when the process first speaks,
    and `host` is the pod. `host` is None where the process says it.
    """

    job: JobName
    uid: str
    run: int | None
    host: Host | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """May look; `until` is when the token ends (Unix seconds), None for one that never does."""

    until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator(Viewer):
    """May look, and hold drills; `name` says who did."""

    name: str


Principal = Agent | Launcher | Process | Viewer


class Tokens:
    """Makes tokens and says who bears one."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Reads the secret of a data directory, or makes it at the first start (mode 0600).

        Raises:
            SecretError: The file is readable by others, or no secret.
        """
        path = directory / SECRET_FILE
        if not path.exists():
            _create(path)
        if path.stat().st_mode & 0o077:
            raise SecretError(f"{path} must be readable by its owner alone (chmod 600)")
        secret = path.read_bytes()
        if len(secret) < _SECRET_BYTES:
            raise SecretError(f"{path} is too short to be a secret")
        return cls(secret)

    def agent(self, node: str, until: float | None = None) -> str:
        """A token for the agent of one node, for ever or `until` an instant in Unix seconds."""
        return self._sign({"kind": "agent", "node": node}, until)

    def launcher(self, name: str, until: float | None = None) -> str:
        """A token for one launcher; `until` as for an agent."""
        return self._sign({"kind": "launcher", "name": name}, until)

    def process(self, job: str, uid: str, run: int) -> str:
        """A token for the processes of one run of one job; `uid` keeps it from a later job of the same name."""
        return self._sign({"kind": "process", "job": job, "uid": uid, "run": run})

    def viewer(self, until: float | None = None) -> str:
        """A token for onlookers; `until` as for an agent."""
        return self._sign({"kind": "viewer"}, until)

    def operator(self, name: str, until: float | None = None) -> str:
        """A token for who may hold drills; `until` as for an agent."""
        return self._sign({"kind": "operator", "name": name}, until)

    def authenticate(self, authorization: str | None) -> Principal:
        """Who sent this Authorization header.

        Raises:
            BadTokenError: Nobody that is known.
        """
        token = token_in(authorization)
        try:
            claims = jwt.decode(token, self._secret, algorithms=[ALGORITHM], audience=_AUDIENCE)
        except (jwt.InvalidTokenError, ValueError, OverflowError) as error:  # Bytes that are no text; an endless `exp`.
            raise BadTokenError("the token is not one of ours, or has expired") from error
        return _principal(claims)

    def _sign(self, claims: dict[str, Any], until: float | None = None) -> str:
        expiry = {} if until is None else {"exp": int(until)}
        return jwt.encode({**claims, **expiry, "aud": _AUDIENCE}, self._secret, algorithm=ALGORITHM)


def token_in(authorization: str | None) -> str:
    """The token of an Authorization header.

    Raises:
        BadTokenError: There is none.
    """
    scheme, _, token = (authorization or "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise BadTokenError("no bearer token")
    return token


def _principal(claims: dict[str, Any]) -> Principal:
    match claims:
        case {"kind": "agent", "node": str(node)} if is_name(node):
            return Agent(Host(node))
        case {"kind": "launcher", "name": str(name)} if is_name(name):
            return Launcher(name)
        case {"kind": "process", "job": str(job), "uid": str(uid), "run": int(run)}:
            return Process(JobName(job), uid, run)
        case {"kind": "viewer"}:
            return Viewer(until=_until(claims))
        case {"kind": "operator", "name": str(name)} if is_name(name):
            return Operator(name=name, until=_until(claims))
    raise BadTokenError("the token names nobody")


def _until(claims: dict[str, Any]) -> float | None:
    return float(claims["exp"]) if "exp" in claims else None


def _create(path: Path) -> None:
    """Links a finished file into place, so that two processes at a first start agree on one secret."""
    with draft_beside(path) as file, suppress(FileExistsError):  # Where another process was first its secret counts.
        file.write_bytes(secrets.token_hex(_SECRET_BYTES).encode())
        failpoint(At.SECRET_WRITTEN)
        path.hardlink_to(file)
        failpoint(At.SECRET_LINKED)
