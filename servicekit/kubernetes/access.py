"""The address of an API server and its credentials, from the pod that this process runs in or from a kubeconfig."""

import os
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from servicekit.kubernetes.errors import ApiUnavailableError, ConfigurationError, MissingConfigurationError

if TYPE_CHECKING:
    import aiohttp  # What prints a usage message needs no client.

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""The directory of a pod's credentials: `token`, `ca.crt` and `namespace`."""

_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
_TOKEN_SECONDS = 60.0
"""The token file is read again after this long: the kubelet writes a new token after four fifths of an hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The address, trust and credentials of a connection.

    Attributes:
        url: Of the API server, without a final slash.
        namespace: The default namespace; empty if none is configured.
        credentials: Returns the headers that authenticate a request; called before each.
        tls: The trusted CAs, for connections that the client makes itself; None for a URL without TLS.
        connector: Makes the connections, with its own TLS; None if the client makes them itself. The client closes it.
        server_hostname: The name that the API server's certificate must have, if it is not the URL's.
        proxy: The URL of a proxy.
    """

    url: str
    namespace: str
    credentials: Callable[[], Awaitable[Mapping[str, str]]]
    tls: ssl.SSLContext | None = None
    connector: "aiohttp.BaseConnector | None" = None
    server_hostname: str | None = None
    proxy: str | None = None
    proxy_headers: Mapping[str, str] | None = None


def in_pod(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process runs in a pod."""
    return _HOST in environ


def require_kubeconfig(file: str | None, environ: Mapping[str, str] = os.environ) -> None:
    """Checks that the named or the default file exists, because the client library's own message is misleading.

    Raises:
        MissingConfigurationError: There is no such file.
    """
    files = file or environ.get("KUBECONFIG") or "~/.kube/config"
    # Unlike pathlib, this leaves `~` as it is where a container's user has no home.
    found = (os.path.expanduser(name) for name in files.split(os.pathsep))  # noqa: PTH111
    if not any(map(os.path.exists, found)):
        raise MissingConfigurationError(f"no cluster to connect to: there is no {files}")


def pod_access(
    environ: Mapping[str, str] = os.environ,
    directory: Path = SERVICE_ACCOUNT_DIR,
    token_seconds: float = _TOKEN_SECONDS,
) -> Access:
    """Returns the access of the pod that this process runs in, without kubernetes-asyncio and its 37 MiB of memory.

    Args:
        environ: Has the API server's address.
        directory: Has the credentials.
        token_seconds: After this long the token is read again.

    Raises:
        ConfigurationError: This is not a pod, or its credentials are not usable.
    """
    try:
        host, port = environ[_HOST], environ[_PORT]
        return Access(
            url=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
            namespace=(directory / "namespace").read_text(encoding="utf-8").strip(),
            tls=ssl.create_default_context(cafile=str(directory / "ca.crt")),
            credentials=_MountedToken(directory / "token", token_seconds).headers,
        )
    except KeyError as error:
        raise ConfigurationError(f"no cluster to connect to: {error.args[0]} is not set") from error
    except OSError as error:  # A CA file without a certificate raises one too.
        raise ConfigurationError(f"no cluster to connect to: {error}") from error


class _MountedToken:
    """The token of the pod's service account, which the kubelet renews."""

    def __init__(self, file: Path, seconds: float) -> None:
        self._file = file
        self._seconds = seconds
        self._token = ""
        self._until = 0.0

    async def headers(self) -> Mapping[str, str]:
        """Returns the headers that authenticate the account."""
        if time.monotonic() >= self._until:
            self._token = self._read()
            self._until = time.monotonic() + self._seconds
        return {"Authorization": f"Bearer {self._token}"}

    def _read(self) -> str:
        try:
            return sendable(self._file.read_text(encoding="utf-8").strip())
        except (OSError, UnicodeDecodeError) as error:
            raise ApiUnavailableError(f"no token: {error}") from error


def sendable(secret: str) -> str:
    """Returns the secret.

    Raises:
        ApiUnavailableError: It is empty or cannot be sent in a header: it is not what somebody meant to write.
    """
    if not secret or not secret.isascii() or not secret.isprintable():
        raise ApiUnavailableError("no token: what was read is empty, or has characters that no token has")
    return secret
