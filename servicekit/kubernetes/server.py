"""The connection to one API server: requests with a time limit, streams, and errors by what to do next."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlencode

import aiohttp
import msgspec
from kubernetes_asyncio.client.configuration import Configuration
from kubernetes_asyncio.client.rest import RESTClientObject
from kubernetes_asyncio.config import ConfigException, load_incluster_config, load_kube_config

from servicekit.kubernetes.errors import (
    ApiError,
    ApiUnavailableError,
    ChangedMeanwhileError,
    ConfigurationError,
    HistoryLostError,
    NotThereError,
    RefusedError,
)

_MOST_AT_ONCE = 32
"""Requests under way: far below what the API server gives one user a turn for (flow control: some hundreds)."""

_MOST_LINE = 8 * 1024 * 1024
"""Bytes of one event: etcd takes 1.5 MiB, as JSON that may be some more."""

_IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_DEFAULT_NAMESPACE = "default"

_BY_STATUS: Mapping[int, type[ApiError]] = {
    401: ApiUnavailableError,  # A token that is just being renewed.
    404: NotThereError,
    409: ChangedMeanwhileError,
    410: HistoryLostError,
    429: ApiUnavailableError,
}
_SERVER_ERRORS = 500


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


class ApiServer:
    """Speaks as whoever the configuration names. Close it.

    Args:
        configuration: Address, authority and credentials.
        namespace: Where the configuration is at home.
        timeout_seconds: For one request with its answer.
    """

    def __init__(self, configuration: Configuration, namespace: str, timeout_seconds: float) -> None:
        self.namespace = namespace
        self.requests = 0
        self.timeout_seconds = timeout_seconds
        self._configuration = configuration
        self._client = RESTClientObject(configuration)
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)

    @classmethod
    async def connect(cls, kubeconfig: str | None, timeout_seconds: float) -> Self:
        """By that file where one is named, else as the pod that this is, else by `~/.kube/config`; sends nothing yet.

        Raises:
            ConfigurationError: There is nothing of the kind, or it is no good.
        """
        configuration = Configuration()
        try:
            if not kubeconfig and _IN_CLUSTER in os.environ:
                namespace = _load_in_cluster(configuration)
            else:
                loader = await load_kube_config(
                    kubeconfig or None, client_configuration=configuration, persist_config=False
                )
                namespace = (loader.current_context or {})["context"].get("namespace", "")
            return cls(configuration, namespace or _DEFAULT_NAMESPACE, timeout_seconds)
        except Exception as error:  # There is no end to what such a file may hold.
            raise ConfigurationError(f"no cluster to connect to: {error}") from error

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
                if len(rest) > _MOST_LINE:
                    raise ApiUnavailableError("a line without end")

    @asynccontextmanager
    async def _sent(self, call: Call, limits: aiohttp.ClientTimeout) -> AsyncIterator[aiohttp.ClientResponse]:
        self.requests += 1
        try:
            async with self._client.pool_manager.request(
                call.method,
                f"{self._configuration.host}{call.path}?{urlencode(call.query or {})}",
                data=call.body,
                headers={"Content-Type": call.content_type, "Accept": "application/json", **await self._credentials()},
                timeout=limits,
                proxy=self._client.proxy,
                proxy_headers=self._client.proxy_headers,
                server_hostname=self._client.server_hostname,
            ) as response:
                if not response.ok:
                    raise refusal(response.status, await response.read())
                with _aborted_unless_finished(response):
                    yield response
        except (aiohttp.ClientError, OSError, TimeoutError, ConfigException) as error:
            raise ApiUnavailableError(f"{type(error).__name__}: {error}".rstrip(": ")) from error

    async def _credentials(self) -> dict[str, str]:
        settings = await self._configuration.auth_settings()
        return {each["key"]: each["value"] for each in settings.values() if each["value"]}


@contextmanager
def _aborted_unless_finished(response: aiohttp.ClientResponse) -> Iterator[None]:
    """Ends the connection of an answer that nobody reads on: saying goodbye waits for a peer that may be gone."""
    try:
        yield
    except BaseException:
        if response.connection is not None and response.connection.transport is not None:
            response.connection.transport.abort()
        raise


def _load_in_cluster(configuration: Configuration) -> str:
    load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call] # The library's own.
    return _OWN_NAMESPACE.read_text(encoding="utf-8").strip()


def refusal(status: int, body: bytes) -> ApiError:
    """What an answer that is not a good one means."""
    try:
        message = msgspec.json.decode(body, type=Answer).message
    except msgspec.MsgspecError:
        message = ""
    kind = ApiUnavailableError if status >= _SERVER_ERRORS else _BY_STATUS.get(status, RefusedError)
    return kind(message or f"the API server answered {status}")
