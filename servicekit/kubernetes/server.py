"""The connection to one API server: requests with a time limit, streams, and errors as `ApiError`s."""

import asyncio
import copy
import math
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Self
from urllib.parse import urlencode

import aiohttp
import msgspec
from aiohttp.connector import Connection

from servicekit.faults import connect_error_reason
from servicekit.kubernetes.access import Access, in_pod, require_kubeconfig
from servicekit.kubernetes.errors import (
    ApiError,
    ApiUnavailableError,
    ConflictError,
    HistoryLostError,
    NotFoundError,
    RefusedError,
)

_MAX_AT_ONCE = 32
"""Concurrent requests: far below the seats that the API server's flow control gives one user, some hundreds."""

_MAX_LINE = 8 * 1024 * 1024
"""Bytes of one event: etcd takes 1.5 MiB, which may be more as JSON."""

_KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 2}
"""Seconds, and the number of probes. On a quiet watch a lost peer would not be noticed for a minute. With these it is
after 20 s without an answer from the other machine's kernel, which answers also when the API server is busy."""

_READ_AHEAD = 2 * 1024 * 1024
"""Bytes: room for one event of any size."""

_MAX_RETRY_AFTER = 30.0
"""Seconds. The API server itself says 1; what says more may be a proxy's mistake."""

_DEFAULT_NAMESPACE = "default"

_GUARDED = "it is not certain at this moment that writes are allowed"

_BY_STATUS: Mapping[int, type[ApiError]] = {
    401: ApiUnavailableError,  # The token is just being renewed.
    404: NotFoundError,
    409: ConflictError,
    410: HistoryLostError,
    429: ApiUnavailableError,
}
_SERVER_ERRORS = 500
_TIMED_OUT, _AHEAD = 504, "Too large resource version"
"""The API server has not reached the version asked for: it lags, or the cluster was restored from a backup."""


class Answer(msgspec.Struct, frozen=True):
    """The part of a Status object that has the reason."""

    message: str = ""
    code: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request; `body` is of the content type."""

    method: str
    path: str
    query: Mapping[str, str | int] | None = None
    body: bytes | None = None
    content_type: str = "application/json"
    accept: str = "application/json"


def ignore_date(_date: str, _seconds: float) -> None:
    """Ignores the Date of an answer."""


def always() -> bool:
    """Allows every write."""
    return True


class ApiServer:
    """A connection to an API server. It has to be closed.

    While the API server says that it is asked too often, no request is sent: each waits for as long as Retry-After
    says, or fails if that is longer than its time limit.

    Args:
        access: Address, trust and credentials.
        timeout_seconds: For a request with its answer.
        on_date: Called with the Date of every answer when it arrives, and the seconds since its request.
        may_write: Called right before a request that may change something. If it returns False, the request is not
            sent and fails as if the API server were unavailable.

    Attributes:
        requests: The number of requests so far.
    """

    def __init__(
        self,
        access: Access,
        timeout_seconds: float,
        on_date: Callable[[str, float], None] = ignore_date,
        may_write: Callable[[], bool] = always,
    ) -> None:
        self.namespace = access.namespace or _DEFAULT_NAMESPACE
        self.requests = 0
        self.timeout_seconds = timeout_seconds
        self.on_date = on_date
        self._may_write = may_write
        self._access = access
        self._client = aiohttp.ClientSession(
            connector=access.connector or aiohttp.TCPConnector(ssl=access.tls or True),
            response_class=_Response,
            read_bufsize=_READ_AHEAD,
        )
        self._turns = asyncio.Semaphore(_MAX_AT_ONCE)
        self._not_before = -math.inf

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None,
        timeout_seconds: float,
        context: str | None = None,
        on_date: Callable[[str, float], None] = ignore_date,
        may_write: Callable[[], bool] = always,
    ) -> Self:
        """Uses the named kubeconfig, else the pod's service account, else `~/.kube/config`. Sends nothing yet.

        A `context` is one of a kubeconfig, by default its current one.

        Raises:
            ConfigurationError: There is none of these, or it is not usable.
        """
        in_cluster = not kubeconfig and not context and in_pod()
        if not in_cluster:
            require_kubeconfig(kubeconfig)
        # Imported here: it loads kubernetes-asyncio, which takes 37 MiB, and agents and stand-alone supervisors do
        # without.
        from servicekit.kubernetes.configured import configured_pod_access, kubeconfig_access  # noqa: PLC0415

        access = configured_pod_access() if in_cluster else await kubeconfig_access(kubeconfig or None, context)
        return cls(access, timeout_seconds, on_date, may_write)

    def beneath(self, path: str, on_date: Callable[[str, float], None] = ignore_date) -> Self:
        """Returns the API server whose root this one serves at a path, as a proxy. It shares the connections.

        It must not be closed.
        """
        server = copy.copy(self)
        server._access = replace(self._access, url=f"{self._access.url}{path}")  # noqa: SLF001 - of this class
        server._not_before = -math.inf  # noqa: SLF001 - of this class
        server.requests, server.on_date = 0, on_date
        return server

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.close()

    async def request(self, call: Call) -> bytes:
        """Sends a request and returns the body of the answer.

        Raises:
            ApiError: The request failed, or took longer than the time limit.
        """
        limits = aiohttp.ClientTimeout(total=self.timeout_seconds)
        async with self._turns, self._sent(call, limits) as response:
            return await response.read()

    async def lines(
        self, call: Call, silent_seconds: float, on_open: Callable[[], None]
    ) -> AsyncGenerator[bytes, None]:
        """Yields the lines of a streamed answer until the API server ends it; calls `on_open` before the first.

        Raises:
            ApiUnavailableError: Among other reasons, no byte has arrived for `silent_seconds`.
            ApiError: See `request`.
        """
        limits = aiohttp.ClientTimeout(sock_connect=self.timeout_seconds, sock_read=silent_seconds)
        rest = b""
        async with self._sent(call, limits) as response:
            on_open()
            async for chunk in response.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line
                if len(rest) > _MAX_LINE:
                    raise ApiUnavailableError("an event is too large")

    @asynccontextmanager
    async def channel(
        self, path: str, query: Sequence[tuple[str, str]], protocols: Sequence[str]
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Opens a WebSocket with one of these protocols, for requests that change something. It has no time limit.

        Raises:
            ApiError: The connection failed.
        """
        await self._wait_as_told()
        self.requests += 1
        if not self._may_write():
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
                with _cut_unless_finished(channel):
                    yield channel
        except aiohttp.WSServerHandshakeError as error:
            raise api_error(error.status, b"") from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unavailable(error) from error

    @asynccontextmanager
    async def _sent(self, call: Call, limits: aiohttp.ClientTimeout) -> AsyncIterator[aiohttp.ClientResponse]:
        await self._wait_as_told()
        self.requests += 1
        if call.method != "GET" and not self._may_write():
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
                    self._note_retry_after(response.headers.get("Retry-After", ""))
                    with _aborted_unless_finished(response.connection, response.content):
                        body = await response.read()
                    raise api_error(response.status, body)
                with _aborted_unless_finished(response.connection, response.content):
                    yield response
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unavailable(error) from error

    def _note_retry_after(self, seconds: str) -> None:
        if seconds.isdecimal():  # A date is for browsers.
            pause = min(float(seconds), _MAX_RETRY_AFTER)
            self._not_before = max(self._not_before, time.monotonic() + pause)

    async def _wait_as_told(self) -> None:
        """Waits as long as the API server has asked for (Retry-After).

        Raises:
            ApiUnavailableError: The API server takes no requests until after the time limit.
        """
        seconds = self._not_before - time.monotonic()
        if seconds > self.timeout_seconds:
            raise ApiUnavailableError(f"the API server takes no requests for {seconds:.0f} s")
        if seconds > 0:
            await asyncio.sleep(seconds)

    def _unavailable(self, error: Exception) -> ApiUnavailableError:
        if isinstance(error, aiohttp.ClientConnectorError):
            return ApiUnavailableError(f"cannot connect to {self._access.url}: {connect_error_reason(error)}")
        return ApiUnavailableError(f"{type(error).__name__}: {error}".rstrip(": "))


class _Response(aiohttp.ClientResponse):
    """An answer whose connection notices a lost peer, and is aborted if the answer is not awaited to its headers."""

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        """Waits for the headers."""
        if connection.transport is not None and (opened := connection.transport.get_extra_info("socket")) is not None:
            _keep_alive(opened)
        with _aborted_unless_finished(connection):
            return await super().start(connection)


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


@contextmanager
def _aborted_unless_finished(connection: Connection | None, body: aiohttp.StreamReader | None = None) -> Iterator[None]:
    """Aborts the connection of an answer that is not read to its end.

    Closing would wait for a peer that may be gone. `body` is that of the answer: once it is read, the connection may
    belong to another request.
    """
    # Taken before: an answer that fails to be read closes its connection by itself.
    transport = None if connection is None else connection.transport
    try:
        yield
    except BaseException:
        if transport is not None and (body is None or not body.is_eof()):
            transport.abort()
        raise


@contextmanager
def _cut_unless_finished(channel: aiohttp.ClientWebSocketResponse) -> Iterator[None]:
    """Shuts a WebSocket's connection down if the caller has failed: closing waits for a peer that may be gone."""
    try:
        yield
    except BaseException:
        opened = channel.get_extra_info("socket")
        if opened is not None:
            with suppress(OSError), socket.fromfd(opened.fileno(), opened.family, opened.type) as same:
                same.shutdown(socket.SHUT_RDWR)
        raise


def api_error(status: int, body: bytes) -> ApiError:
    """Returns the error for an answer that is not a success."""
    try:
        message = msgspec.json.decode(body, type=Answer).message
    except msgspec.MsgspecError:
        message = ""
    kind = ApiUnavailableError if status >= _SERVER_ERRORS else _BY_STATUS.get(status, RefusedError)
    if status == _TIMED_OUT and _AHEAD in message:
        kind = HistoryLostError
    return kind(message or f"the API server answered {status}")
