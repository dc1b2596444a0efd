"""Access by kubernetes-asyncio: it reads kubeconfigs and service accounts, renews tokens and makes connections."""

import asyncio
import gc
import math
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from servicekit.kubernetes.access import SERVICE_ACCOUNT_DIR, Access, pod_access, sendable
from servicekit.kubernetes.errors import ApiUnavailableError, ConfigurationError

# The library imports this one where it is installed, as in a checkout, and with it 3.5 s of jsonschema. It does
# without, and we never validate.
_VALIDATES = sys.modules.get("kubernetes_validate")
sys.modules["kubernetes_validate"] = _VALIDATES  # type: ignore[assignment]  # None keeps it from being imported.
# It looks for the user's home when it is imported, and fails where there is none, as for a container's user.
try:
    Path.home()
except RuntimeError:
    os.environ["HOME"] = "/"
from kubernetes_asyncio.client import ApiClient, Configuration  # noqa: E402
from kubernetes_asyncio.config import load_incluster_config, load_kube_config  # noqa: E402
from kubernetes_asyncio.config.kube_config import KubeConfigLoader  # noqa: E402

if _VALIDATES is None:
    del sys.modules["kubernetes_validate"]
# The 31,000 objects of its classes live as long as the process. With them, a full collection of garbage took 1.6 times
# as long as before.
gc.freeze()

_PLUGIN_SECONDS = 60.0
"""The time limit of a program that a kubeconfig names to get a token. A person may have to log in."""

_CHECK_SECONDS = 60.0
"""The library is asked at least this often whether a token has to be renewed. It does so 5 minutes before the end."""

_RENEWED_AFTER = 0.8
"""The part of a token's remaining life after which the library is asked, if that is sooner."""

_LEAST_SECONDS = 1.0
"""The least time between two runs of a program that gives tokens which have already expired."""

_ENDING_TURNS, _ENDING_SECONDS = 20, 0.05
"""How often, and after how long, a killed program is looked for."""

_MARK = b"KUBERNETES_EXEC_INFO="
"""The environment variable that marks a program which the library has started to get a token."""


def configured_pod_access(environ: Mapping[str, str] = os.environ, directory: Path = SERVICE_ACCOUNT_DIR) -> Access:
    """Returns the access of the pod that this process runs in, over the library's connections.

    Args:
        environ: Has the API server's address.
        directory: Has the credentials. The library reads the token at the first request and again after a minute.

    Raises:
        ConfigurationError: This is not a pod, or its credentials are not usable.
    """
    own = pod_access(environ, directory)  # It says in a sentence what is missing.
    configuration = Configuration()
    ca = str(directory / "ca.crt")
    account = {"token_filename": str(directory / "token"), "cert_filename": ca, "environ": environ}

    def load(unread: Configuration) -> None:
        # It replaces this hook by its own, unless the token cannot be read: then the next request tries it again.
        load_incluster_config(unread, **account)  # type: ignore[no-untyped-call]

    configuration.ssl_ca_cert = ca
    configuration.api_key["BearerToken"] = ""  # Without one the library does not call the hook.
    configuration.refresh_api_key_hook = load
    return replace(own, credentials=_Credentials(configuration).headers, connector=_connector(configuration))


async def kubeconfig_access(
    file: str | None, context: str | None = None, plugin_seconds: float = _PLUGIN_SECONDS
) -> Access:
    """Reads the file, or `~/.kube/config` if none is named, for a context, by default its current one.

    Raises:
        ConfigurationError: The file is missing or not usable.
    """
    configuration = Configuration()
    try:
        async with _limited(plugin_seconds):
            loader = await load_kube_config(
                file, context=context, client_configuration=configuration, persist_config=False
            )
        if loader.provider or hasattr(loader, "exec_plugin_expiry"):
            configuration.refresh_api_key_hook = _Renewal(loader, plugin_seconds).renew
        url = str(configuration.host)
        return Access(
            url=url,
            namespace=(loader.current_context or {})["context"].get("namespace", ""),
            credentials=_Credentials(configuration).headers,
            connector=_connector(configuration),
            server_hostname=configuration.tls_server_name,
            proxy=configuration.proxy or _proxy_of_environment(url),
            proxy_headers=configuration.proxy_headers,
        )
    except Exception as error:
        raise ConfigurationError(f"no cluster to connect to: {_why(error, file, context)}") from error


def _why(error: Exception, file: str | None, context: str | None) -> str:
    """Explains to people why a kubeconfig is not usable; the library's messages are about its own parser."""
    name = file or "~/.kube/config"
    if "current-context" in str(error):
        return f"{name} has no current context (`kubectl config use-context` sets it)"
    if context and f"name {context} in" in str(error):
        return f"{name} has no context {context} (`kubectl config get-contexts` lists them)"
    return f"{name} cannot be used: {' '.join(str(error).split())}"


def _proxy_of_environment(url: str) -> str | None:
    """Returns the proxy that HTTPS_PROXY, NO_PROXY and similar variables name for a URL.

    Read once: the library's session would read it for every request, and ~/.netrc as well, each in a thread.
    """
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


def _connector(configuration: Configuration) -> aiohttp.BaseConnector | None:
    """Takes the library's pool of connections, with its TLS context, from the library's session."""
    session = ApiClient(configuration).rest_client.pool_manager
    connector = session.connector
    session.detach()  # Our own session sends, and the connector would be closed with the library's.
    return connector


class _Credentials:
    """The credentials of a request: a token, or a name with its password, or nothing beside a client certificate."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    async def headers(self) -> Mapping[str, str]:
        """Returns the headers of a request; has a token renewed that expires soon.

        Raises:
            ApiUnavailableError: There are no credentials now.
        """
        try:
            settings = await self._configuration.auth_settings()
        except Exception as error:
            raise ApiUnavailableError(f"no token: {' '.join(str(error).split())}") from error
        headers = {each["key"]: each["value"].strip() for each in settings.values() if each["value"]}
        for value in headers.values():
            sendable(value.partition(" ")[2])
        return headers


class _Renewal:
    """Has the library renew the token of a kubeconfig, by the program or the provider that the file names."""

    def __init__(self, loader: KubeConfigLoader, seconds: float) -> None:
        self._loader = loader
        self._seconds = seconds
        self._turn = asyncio.Lock()
        self._failed_at, self._failure = -math.inf, ""
        self._until = self._next()

    async def renew(self, configuration: Configuration) -> None:
        """Renews the token if that is due. If another request is renewing it, waits for the result.

        Raises:
            ApiUnavailableError: The token has expired, and there is no other.
        """
        asked = time.monotonic()
        async with self._turn:
            if time.monotonic() < self._until:
                return
            if self._failed_at >= asked:
                raise ApiUnavailableError(self._failure)
            try:
                async with _limited(self._seconds):
                    await self._load(configuration)
            except Exception as error:
                self._failed_at, self._failure = time.monotonic(), str(error)
                if self._left <= 0:
                    raise
            self._until = self._next()

    async def _load(self, configuration: Configuration) -> None:
        if self._loader.provider:
            await self._loader.load_and_set(configuration)
        else:
            await self._loader.load_from_exec_plugin()
            configuration.api_key["BearerToken"] = self._loader.token

    @property
    def _left(self) -> float:
        """Seconds until the token expires, as far as the program has said so."""
        expiry: datetime | None = getattr(self._loader, "exec_plugin_expiry", None)
        return (expiry - datetime.now(UTC)).total_seconds() if expiry else 0.0

    def _next(self) -> float:
        soon = max(_LEAST_SECONDS, self._left * _RENEWED_AFTER)
        return time.monotonic() + min(_CHECK_SECONDS, soon)


@asynccontextmanager
async def _limited(seconds: float) -> AsyncIterator[None]:
    """Limits how long the library may take.

    The program that it has started is killed when it takes longer or is cancelled: the library would leave it running.

    Raises:
        TimeoutError: It has taken longer. The message says so.
    """
    before = _programs()
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        await _end(_programs() - before)
        raise TimeoutError(f"the program that gives the token has not ended within {seconds:g} s") from error
    except asyncio.CancelledError:
        await _end(_programs() - before)
        raise


async def _end(programs: set[int]) -> None:
    """Kills these programs and waits until the event loop has seen them go: one that ends before would complain."""
    for program in programs:
        with suppress(ProcessLookupError):
            os.kill(program, signal.SIGKILL)
    for _ in range(_ENDING_TURNS):
        if not programs & _programs():
            break
        await asyncio.sleep(_ENDING_SECONDS)
    await asyncio.sleep(_ENDING_SECONDS)


def _programs() -> set[int]:
    """Returns the children of this thread that the library has started for a token."""
    children = _read("/proc/thread-self/children").split()
    return {int(child) for child in children if _MARK in _read(f"/proc/{int(child)}/environ")}


def _read(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError:  # The process has ended; or a rare kernel does not list children, and its users end them.
        return b""
