"""One supervisor over HTTP, with a token of ours: stand-alone, or a cluster's leader through a forwarded port."""

import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from servicekit.address import is_loopback
from servicekit.connect_errors import connect_error_reason
from supervisor.cli.backend import Subject
from supervisor.cli.errors import (
    CliError,
    DeniedError,
    NotNowError,
    NotUnderstoodError,
    UnknownError,
    UnreachableError,
    UsageError,
)
from supervisor.cli.status import Job, Status
from supervisor.domain.notice import SubjectKind

_PATIENCE_SECONDS = 10.0
_NODE, _POD = "node/", "pod/"

T = TypeVar("T")

_BY_STATUS: Mapping[int, type[CliError]] = {
    400: UsageError,
    401: DeniedError,
    403: DeniedError,
    404: UnknownError,
    405: NotUnderstoodError,
    429: NotNowError,
    503: NotNowError,
}
_HINTS = {
    "bad_token": "Make one with `elastic-job-supervisor token viewer`, on the supervisor's machine.",
    "foreign_token": "Looking takes a viewer's or an operator's token, and a drill an operator's "
    "(`elastic-job-supervisor token operator --name NAME`).",
    "unknown_call": "It is of another version than this command.",
    "not_serving": "Try again in a moment.",
}


class _Refusal(msgspec.Struct, frozen=True):
    error: str = ""
    message: str = ""


class _Ended(msgspec.Struct, frozen=True):
    ended: list[str]


class _Page(Status, frozen=True, kw_only=True):
    """A part of the view; `next` is where the following one begins, None after the last."""

    next: str | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """A supervisor's `http://…` or `https://…`, and the CAs to trust (PEM), None for those of this machine.

    Raises:
        UsageError: It is no such address, or plain HTTP to another machine.
    """

    url: str
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(f"{self.url!r} is no address: it begins with http:// or https://.")
        try:
            where = URL(self.url)  # What aiohttp connects to: another parser might find another host.
        except ValueError as error:
            raise UsageError(f"{self.url!r} is no address: {error}.") from error
        if where.scheme == "http" and not is_loopback(where.host or ""):
            raise UsageError("--address: beyond this machine only https, as the token travels with every call.")

    def trusted(self) -> ssl.SSLContext:
        """For a connection.

        Raises:
            UsageError: The file is no good.
        """
        try:
            return ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"{self.ca_file} holds no certificate to trust: {error}") from error


class HttpBackend:
    """Open with `open`. `token` is asked for before each call, as short-lived ones do not outlast a `--watch`."""

    def __init__(self, address: Address, token: Callable[[], str], session: aiohttp.ClientSession) -> None:
        self._address = address
        self._token = token
        self._session = session

    @classmethod
    @asynccontextmanager
    async def open(cls, address: Address, token: Callable[[], str]) -> AsyncIterator[Self]:
        """For as long as the context lasts."""
        connector = aiohttp.TCPConnector(ssl=address.trusted())
        limits = aiohttp.ClientTimeout(total=_PATIENCE_SECONDS)
        async with aiohttp.ClientSession(connector=connector, timeout=limits) as session:
            yield cls(address, token, session)

    async def status(self) -> Status:
        """See `Backend`."""
        pages = [await self._call("GET", "/v1/status", None, _Page)]
        while (after := pages[-1].next) is not None:
            pages.append(await self._call("GET", f"/v1/status?after={quote(after)}", None, _Page))
        return _joined(pages)

    async def subject(self, text: str) -> Subject:
        """See `Backend`; whether an agent of that name is known, the supervisor says."""
        if text.startswith(_POD):
            raise UsageError("Here a drill is about a node, by its agent's name: pods are a cluster's (--kubeconfig).")
        return Subject(kind=SubjectKind.NODE, name=text.removeprefix(_NODE))

    async def begin(self, subject: Subject, lead: float, by: str) -> None:  # noqa: ARG002 - the token says by whom
        """See `Backend`."""
        await self._call("POST", "/v1/drills", {"node": subject.name, "lead_seconds": lead}, dict[str, Any])

    async def end(self, subject: Subject | None) -> list[Subject]:
        """See `Backend`."""
        asked = {"node": None if subject is None else subject.name}
        ended = (await self._call("POST", "/v1/drills/end", asked, _Ended)).ended
        return [Subject(kind=SubjectKind.NODE, name=name) for name in ended]

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None, kind: type[T]) -> T:
        url = self._address.url.rstrip("/") + path
        headers = {"Authorization": f"Bearer {self._token()}"}
        try:
            # A supervisor sends nobody elsewhere, and the token is for nobody else.
            async with self._session.request(method, url, headers=headers, json=body, allow_redirects=False) as answer:
                data = await answer.read()
                if not answer.ok:
                    raise _refused(answer.status, data)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise self._connection_error(error) from error
        return _decoded(data, kind)

    def _connection_error(self, error: Exception) -> CliError:
        url = self._address.url
        match error:
            case aiohttp.ClientConnectorCertificateError():
                return NotUnderstoodError(
                    f"The certificate of {url} is not to be trusted: {error.certificate_error}. Its CA goes into "
                    "--ca-file, and the address must have the name that is in the certificate (--address)."
                )
            case aiohttp.ClientSSLError():
                return NotUnderstoodError(f"{url} does not speak TLS: is it http://?")
            case aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError() if not isinstance(
                error, aiohttp.ClientConnectorError
            ):
                return UnreachableError(f"{url} ended the connection without an answer: is it https://?")
            case TimeoutError():
                return UnreachableError(f"No answer from {url} within {_PATIENCE_SECONDS:g} s.")
            case aiohttp.InvalidURL():
                return UsageError(f"{url!r} is no address.")
            case _:
                return UnreachableError(f"No supervisor answers at {url}: {connect_error_reason(error)}.")


def _joined(pages: Sequence[_Page]) -> Status:
    """The view whose pages these are, as of the first one; a large job is on several."""
    jobs: dict[str, list[Job]] = {}
    for job in (job for page in pages for job in page.jobs):
        jobs.setdefault(job.job, []).append(job)
    agents = [page.agents for page in pages if page.agents is not None]
    return Status(
        now=pages[0].now,
        jobs=[_one(parts) for parts in jobs.values()],
        notices=[notice for page in pages for notice in page.notices],
        agents=[agent for part in agents for agent in part] if agents else None,
    )


def _one(parts: Sequence[Job]) -> Job:
    return msgspec.structs.replace(
        parts[0],
        workers=[host for part in parts for host in part.workers],
        exclusions=[host for part in parts for host in part.exclusions],
        host_states=[host for part in parts for host in part.host_states],
    )


def _refused(status: int, data: bytes) -> CliError:
    try:
        said = msgspec.json.decode(data, type=_Refusal)
    except msgspec.MsgspecError:
        said = _Refusal()
    if not said.error:
        return NotUnderstoodError(f"Whoever answers there is no supervisor: it said {status}.")
    kind = NotUnderstoodError if said.error == "unknown_call" else _BY_STATUS.get(status, NotUnderstoodError)
    hint = _HINTS.get(said.error, "")
    return kind(f"The supervisor refuses: {said.message}. {hint}".rstrip())


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise NotUnderstoodError(
            f"What the supervisor says is not understood: {error}. {_HINTS['unknown_call']}"
        ) from error
