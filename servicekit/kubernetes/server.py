"""The connection to one API server: requests with a time limit, streams, and errors by what to do next."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlencode

import aiohttp
import msgspec

from servicekit.connect_errors import connect_error_reason
from servicekit.kubernetes.access import Access, in_pod, pod_access, require_kubeconfig
from servicekit.kubernetes.errors import (
    ApiError,
    ApiUnavailableError,
    ConflictError,
    HistoryLostError,
    NotFoundError,
    RefusedError,
)

_MAX_AT_ONCE = 32
"""Requests under way: far below what the API server gives one user a turn for (flow control: some hundreds)."""

_MAX_LINE = 8 * 1024 * 1024
"""Bytes of one event: etcd takes 1.5 MiB, as JSON that may be some more."""

_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 2}
"""Seconds, and how many times: a watch on which nothing happens for a minute would not notice before that its peer is
gone. After 20 s without a sign from the other machine's kernel it does; that of a busy API server answers."""

_READ_AHEAD = 2 * 1024 * 1024
"""Bytes: one event at a time, whatever its size."""

_DEFAULT_NAMESPACE = "default"

_GUARDED = "not certain at this moment that anything may be changed"

_BY_STATUS: Mapping[int, type[ApiError]] = {
    401: ApiUnavailableError,  # A token that is just being renewed.
    404: NotFoundError,
    409: ConflictError,
    410: HistoryLostError,
    429: ApiUnavailableError,
}
_SERVER_ERRORS = 500
_TIMED_OUT, _AHEAD = 504, "Too large resource version"
"""Asked for a version that it has not come to: it lags, or the cluster was restored from a backup."""


class Answer(msgspec.Struct, frozen=True):
    """The part of a Status object that says why."""

    message: str = ""
    code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request; `body` is JSON of the given type."""

    method: str
    path: str
    query: Mapping[str, str | int] | None = None
    body: bytes | None = None
    content_type: str = "application/json"
    accept: str = "application/json"


class ApiServer:
    """Speaks as whoever the access names. Close it.

    Args:
        access: Address, authority and credentials.
        timeout_seconds: For one request with its answer.

    Attributes:
        dated: Called with the Date of every answer as it comes, and the seconds since its request.
        guard: Asked right before a request that may change something; where it says no, the API server counts as away.
    """

    def __init__(self, access: Access, timeout_seconds: float) -> None:
        self.namespace = access.namespace or _DEFAULT_NAMESPACE
        self.requests = 0
        self.timeout_seconds = timeout_seconds
        self.on_date: Callable[[str, float], None] = lambda _date, _seconds: None
        self.guard: Callable[[], bool] = lambda: True
        self._access = access
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=access.tls or True, socket_factory=_kept_alive),
            trust_env=access.proxy_from_environment,
            read_bufsize=_READ_AHEAD,
        )
        self._turns = asyncio.Semaphore(_MAX_AT_ONCE)

    @classmethod
    async def connect(cls, kubeconfig: str | None, timeout_seconds: float) -> Self:
        """By that file where one is named, else as the pod that this is, else by `~/.kube/config`; sends nothing yet.

        Raises:
            ConfigurationError: There is nothing of the kind, or it is no good.
        """
        if not kubeconfig and in_pod():
            return cls(pod_access(), timeout_seconds)
        require_kubeconfig(kubeconfig)
        # Imported here: the client library costs 36 MiB, which a pod needs none of.
        from servicekit.kubernetes.kubeconfig import kubeconfig_access  # noqa: PLC0415

        return cls(await kubeconfig_access(kubeconfig or None), timeout_seconds)

    async def close(self) -> None:
        """Ends all connections."""
        await self._client.close()
        await asyncio.sleep(0)  # What was aborted ends in the loop's next turn.

    async def request(self, call: Call) -> bytes:
        """The body of a good answer.

        Raises:
            ApiError: One of its kinds; there is a time limit, so this ends.
        """
        limits = aiohttp.ClientTimeout(total=self.timeout_seconds)
        async with self._turns, self._sent(call, limits) as response:
            return await response.read()

    async def lines(self, call: Call, silent_seconds: float, opened: Callable[[], None]) -> AsyncGenerator[bytes, None]:
        """The lines of an answer that goes on, each as it comes, until the API server ends it; calls `opened` before.

        Raises:
            ApiUnavailableError: No byte has come for that long, among other things.
            ApiError: As for `request`.
        """
        limits = aiohttp.ClientTimeout(sock_connect=self.timeout_seconds, sock_read=silent_seconds)
        rest = b""
        async with self._sent(call, limits) as response:
            opened()
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line
                if len(rest) > _MAX_LINE:
                    raise ApiUnavailableError("a line without end")

    @asynccontextmanager
    async def channel(
        self, path: str, query: Sequence[tuple[str, str]], protocols: Sequence[str]
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """A WebSocket with one of these protocols, for what changes something. It has no time limit: the caller has.

        Raises:
            ApiError: One of its kinds.
        """
        self.requests += 1
        if not self.guard():
            raise ApiUnavailableError(_GUARDED)
        try:
            async with (
                self._turns,
                self._client.ws_connect(
                    f"{self._access.url}{path}?{urlencode(query)}",
                    protocols=protocols,
                    headers=await self._access.credentials(),
                    proxy=self._access.proxy,
                    proxy_headers=self._access.proxy_headers,
                    server_hostname=self._access.server_hostname,
                ) as channel,
            ):
                yield channel
        except aiohttp.WSServerHandshakeError as error:
            raise refusal(error.status, b"") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unavailable(error) from error

    @asynccontextmanager
    async def _sent(self, call: Call, limits: aiohttp.ClientTimeout) -> AsyncIterator[aiohttp.ClientResponse]:
        self.requests += 1
        if call.method != "GET" and not self.guard():
            raise ApiUnavailableError(_GUARDED)
        begun = time.monotonic()
        try:
            async with self._client.request(
                call.method,
                f"{self._access.url}{call.path}?{urlencode(call.query or {})}",
                data=call.body,
                headers={
                    "Content-Type": call.content_type,
                    "Accept": call.accept,
                    **await self._access.credentials(),
                },
                timeout=limits,
                proxy=self._access.proxy,
                proxy_headers=self._access.proxy_headers,
                server_hostname=self._access.server_hostname,
            ) as response:
                self.on_date(response.headers.get("Date", ""), time.monotonic() - begun)
                if not response.ok:
                    raise refusal(response.status, await response.read())
                with _aborted_unless_finished(response):
                    yield response
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> ApiUnavailableError:
        if isinstance(error, aiohttp.ClientConnectorError):
            return ApiUnavailableError(f"cannot connect to {self._access.url}: {connect_error_reason(error)}")
        return ApiUnavailableError(f"{type(error).__name__}: {error}".rstrip(": "))


def _kept_alive(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    connection = socket.socket(family, kind, protocol)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    return connection


@contextmanager
def _aborted_unless_finished(response: aiohttp.ClientResponse) -> Iterator[None]:
    """Ends the connection of an answer that nobody reads on: saying goodbye waits for a peer that may be gone."""
    try:
        yield
    except BaseException:
        if response.connection is not None and response.connection.transport is not None:
            response.connection.transport.abort()
        raise


def refusal(status: int, body: bytes) -> ApiError:
    """What an answer that is not a good one means."""
    try:
        message = msgspec.json.decode(body, type=Answer).message
    except msgspec.MsgspecError:
        message = ""
    kind = ApiUnavailableError if status >= _SERVER_ERRORS else _BY_STATUS.get(status, RefusedError)
    if status == _TIMED_OUT and _AHEAD in message:
        kind = HistoryLostError
    return kind(message or f"the API server answered {status}")
