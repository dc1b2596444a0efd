"""Implements the backend for one supervisor over HTTP: stand-alone, or a cluster's leader through a forwarded port."""

import ssl
from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from job_supervisor.cli import errors
from job_supervisor.cli.backend import DrillSubject, Past, PastEntry, PastQuery, SeenStatus
from servicekit.address import is_loopback
from servicekit.faults import connect_error_reason
from servicekit.kubernetes.client import Resource
from supervisor.domain.ids import JobName
from supervisor.domain.job import RequestKind
from supervisor.domain.notice import SubjectKind
from supervisor.observability.views import CapacityView, JobView, LedgerView, PoolCapacityView

_PATIENCE_SECONDS = 10.0
_NODE, _POD = "node/", "pod/"

T = TypeVar("T")

_BY_STATUS: Mapping[int, type[errors.CliError]] = {
    400: errors.CliUsageError,
    401: errors.DeniedError,
    403: errors.DeniedError,
    404: errors.UnknownError,
    405: errors.AnswerNotUnderstoodError,
    409: errors.UnknownError,
    429: errors.NotNowError,
    503: errors.NotNowError,
}
_HINTS = {
    "bad_token": "Create one with `elastic-job-supervisor token viewer` on the supervisor's machine.",
    "foreign_token": "Reading needs a viewer's or an operator's token, everything else an operator's token "
    "(`elastic-job-supervisor token operator --name NAME`).",
    "unknown_call": "Its version may differ from this command's.",
    "not_serving": "Try again in a moment.",
}


class UnknownCallError(errors.AnswerNotUnderstoodError):
    """The supervisor does not know the call: it is older or newer than this command."""


class _Happened(msgspec.Struct, frozen=True):
    since: float
    entries: list[PastEntry]
    next: str | None = None


class _Refusal(msgspec.Struct, frozen=True):
    error: str = ""
    message: str = ""


class _Ended(msgspec.Struct, frozen=True):
    ended: list[str]


class _StatusPage(SeenStatus, frozen=True, kw_only=True):
    """A page of the status; `next` is the position of the following page, None on the last one."""

    next: str | None = None


@dataclass(frozen=True, slots=True)
class SupervisorAddress:
    """A supervisor's URL, and the file with the CAs to trust (PEM). None stands for the CAs of this machine.

    Raises:
        CliUsageError: The URL is wrong, or plain HTTP to another machine.
    """

    url: str
    ca_file: Path | None = None

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise errors.CliUsageError(f"{self.url!r} is not an address: it must begin with http:// or https://.")
        try:
            url = URL(self.url)  # aiohttp connects to this; another parser might find another host.
        except ValueError as error:
            raise errors.CliUsageError(f"{self.url!r} is not an address: {error}.") from error
        if url.scheme == "http" and not is_loopback(url.host or ""):
            raise errors.CliUsageError("Only https:// is allowed beyond this machine, as every call carries the token.")

    def ssl_context(self) -> ssl.SSLContext:
        """The TLS context for a connection.

        Raises:
            CliUsageError: The CA file cannot be used.
        """
        try:
            return ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
        except (OSError, ssl.SSLError) as error:
            raise errors.CliUsageError(f"{self.ca_file} contains no usable CA certificate: {error}") from error


@dataclass(frozen=True, slots=True)
class HttpBackend:
    """Implements `Backend`; made with `open`. Calls `token` before each request, as a short-lived one may expire."""

    address: SupervisorAddress
    token: Callable[[], str]
    session: aiohttp.ClientSession

    @classmethod
    @asynccontextmanager
    async def open(
        cls, address: SupervisorAddress, trusted: ssl.SSLContext, token: Callable[[], str]
    ) -> AsyncIterator[Self]:
        connector = aiohttp.TCPConnector(ssl=trusted)
        limits = aiohttp.ClientTimeout(total=_PATIENCE_SECONDS)
        async with aiohttp.ClientSession(connector=connector, timeout=limits) as session:
            yield cls(address, token, session)

    async def status(self) -> SeenStatus:
        pages = [await self._call("GET", "/v1/status", None, _StatusPage)]
        while (after := pages[-1].next) is not None:
            pages.append(await self._call("GET", f"/v1/status?after={quote(after)}", None, _StatusPage))
        return _joined(pages)

    async def manifest(self, resource: Resource, namespace: str, name: str) -> object | None:  # noqa: ARG002 - it shows none
        """Returns None, because a supervisor's status has no manifests."""
        return None

    async def labelled(self, selector: str) -> Container[JobName]:
        """Raises CliUsageError, because a supervisor's status has no labels."""
        raise errors.CliUsageError(
            f"-l {selector}: labels are those of a cluster's objects, and a supervisor's address does not show them. "
            "Use --kubeconfig or --context."
        )

    async def past(self, status: SeenStatus, wanted: PastQuery) -> Past:
        asked = {
            **dict(wanted.subjects),
            "source": wanted.source,
            "since": wanted.since,
            "drills": None if wanted.drills else "false",
        }
        query = {name: str(value) for name, value in asked.items() if value is not None}
        entries, since, before = list[PastEntry](), status.now, dict[str, str]()
        while True:
            page = urlencode({**query, **before, "limit": max(1, wanted.limit - len(entries))})
            try:
                found = await self._call("GET", f"/v1/history?{page}", None, _Happened)
            except UnknownCallError:
                status.unseen.append("most of the past: this supervisor is older than the command.")
                return Past()
            except errors.CliError as error:
                status.unseen.append(f"most of the past: {error}")
                return Past()
            entries = [*found.entries, *entries]
            since = min(since, found.since)
            if found.next is None or len(entries) >= wanted.limit:
                return Past(entries=entries, since=since, is_cut=found.next is not None)
            before = {"before": found.next}

    async def ledger(self, since: float, until: float | None, *, by_pool: bool = False) -> LedgerView:
        try:
            query = _between(since, until) + ("&by=pool" if by_pool else "")
            return await self._call("GET", f"/v1/ledger?{query}", None, LedgerView)
        except UnknownCallError as error:
            raise errors.UnknownError("This supervisor keeps no ledger: it is older than the command.") from error

    async def capacity(self, job: JobName, since: float, until: float | None) -> CapacityView | None:
        try:
            query = f"{urlencode({'job': job})}&{_between(since, until)}"
            return await self._call("GET", f"/v1/capacity?{query}", None, CapacityView)
        except UnknownCallError:
            return None

    async def pool_capacity(self, pool: str, since: float, until: float | None) -> PoolCapacityView:
        query = f"{urlencode({'pool': pool})}&{_between(since, until)}"
        return await self._call("GET", f"/v1/capacity?{query}", None, PoolCapacityView)

    async def subject(self, text: str) -> DrillSubject:
        """Resolves a node. The supervisor checks later whether it knows an agent of that name."""
        if text.startswith(_POD):
            raise errors.CliUsageError(
                "This supervisor knows nodes, by the name of their agent; pods need --kubeconfig."
            )
        return DrillSubject(kind=SubjectKind.NODE, name=text.removeprefix(_NODE))

    async def begin(self, subject: DrillSubject, lead: float, by: str) -> None:  # noqa: ARG002 - the token says by whom
        await self._call("POST", "/v1/drills", {"node": subject.name, "lead_seconds": lead}, dict[str, Any])

    async def end(self, subject: DrillSubject | None) -> list[DrillSubject]:
        requested = {"node": None if subject is None else subject.name}
        ended = (await self._call("POST", "/v1/drills/end", requested, _Ended)).ended
        return [DrillSubject(kind=SubjectKind.NODE, name=name) for name in ended]

    async def drain(self, node: DrillSubject, lead: float, by: str, reason: str) -> None:  # noqa: ARG002 - as above
        asked = {"node": node.name, "lead_seconds": lead, "reason": reason}
        await self._call("POST", "/v1/drains", asked, dict[str, Any])

    async def undrain(self, node: DrillSubject) -> None:
        await self._call("POST", "/v1/drains/end", {"node": node.name}, _Ended)

    async def ask(self, job: JobName, kind: RequestKind | None, by: str, reason: str) -> None:  # noqa: ARG002 - as above
        if kind is None:
            await self._call("POST", "/v1/jobs/resume", {"job": job}, dict[str, Any])
        else:
            await self._call("POST", f"/v1/jobs/{kind}", {"job": job, "reason": reason}, dict[str, Any])

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None, kind: type[T]) -> T:
        url = self.address.url.rstrip("/") + path
        headers = {"Authorization": f"Bearer {self.token()}"}
        try:
            # A supervisor never redirects, and no other server may get the token.
            async with self.session.request(method, url, headers=headers, json=body, allow_redirects=False) as answer:
                data = await answer.read()
                if not answer.ok:
                    raise _refused(answer.status, data)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            raise self._connection_error(error) from error
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.MsgspecError as error:
            raise errors.AnswerNotUnderstoodError(
                f"The answer of the supervisor is not understood: {error}. {_HINTS['unknown_call']}"
            ) from error

    def _connection_error(self, error: Exception) -> errors.CliError:
        url = self.address.url
        match error:
            case aiohttp.ClientConnectorCertificateError():
                return errors.AnswerNotUnderstoodError(
                    f"The certificate of {url} is not trusted: {error.certificate_error}. Pass its CA with --ca-file, "
                    "and use an --address whose host is in the certificate."
                )
            case aiohttp.ClientSSLError():
                return errors.AnswerNotUnderstoodError(f"{url} does not speak TLS. Is it http://?")
            case aiohttp.ClientResponseError():  # As the port for agents begins with a frame of HTTP/2.
                return errors.UnreachableError(
                    f"{url} does not speak HTTP/1.1. Is it the port for agents? Commands use the other one, 8471 by "
                    "default."
                )
            case aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError() if not isinstance(
                error, aiohttp.ClientConnectorError
            ):
                return errors.UnreachableError(f"{url} closed the connection without an answer. Is it https://?")
            case TimeoutError():
                return errors.UnreachableError(f"No answer from {url} within {_PATIENCE_SECONDS:g} s.")
            case aiohttp.InvalidURL():
                return errors.CliUsageError(f"{url!r} is not an address.")
            case _:
                return errors.UnreachableError(f"No supervisor answers at {url}: {connect_error_reason(error)}.")


def _joined(pages: Sequence[_StatusPage]) -> SeenStatus:
    """Joins the pages into one status, as of the first page; a large job may span several."""
    jobs: dict[str, list[JobView]] = {}
    for job in (job for page in pages for job in page.jobs):
        jobs.setdefault(job.job, []).append(job)
    agents = [page.agents for page in pages if page.agents is not None]
    return SeenStatus(
        now=pages[0].now,
        jobs=[_one(parts) for parts in jobs.values()],
        notices=[notice for page in pages for notice in page.notices],
        agents=[agent for part in agents for agent in part] if agents else None,
        unconfirmed=[notice for page in pages for notice in page.unconfirmed],
        groups=pages[0].groups,
        leader=pages[0].leader,
    )


def _one(parts: Sequence[JobView]) -> JobView:
    return msgspec.structs.replace(
        parts[0],
        workers=[host for part in parts for host in part.workers],
        exclusions=[host for part in parts for host in part.exclusions],
        host_states=[host for part in parts for host in part.host_states],
        missing_hosts=[host for part in parts for host in part.missing_hosts],
    )


def _refused(status: int, data: bytes) -> errors.CliError:
    try:
        refusal = msgspec.json.decode(data, type=_Refusal)
    except msgspec.MsgspecError:
        refusal = _Refusal()
    if not refusal.error:
        return errors.AnswerNotUnderstoodError(
            f"The server at that address is not a supervisor: it answered with status {status}."
        )
    kind = (
        UnknownCallError if refusal.error == "unknown_call" else _BY_STATUS.get(status, errors.AnswerNotUnderstoodError)
    )
    hint = _HINTS.get(refusal.error, "")
    return kind(f"The supervisor refused the request: {refusal.message}. {hint}".rstrip())


def _between(since: float, until: float | None) -> str:
    return urlencode({"since": since} if until is None else {"since": since, "until": until})
