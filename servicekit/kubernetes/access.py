"""Where an API server is and who one is there: as the pod that this process runs in, or by a kubeconfig file."""

import os
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from servicekit.kubernetes.errors import ApiUnavailableError, ConfigurationError

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts the credentials of a pod: `token`, `ca.crt` and `namespace`."""

_HOST, _PORT = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
_TOKEN_SECONDS = 60.0
"""A token is read again after this long: the kubelet writes a new one when four fifths of an hour have passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """All that a connection needs.

    Attributes:
        url: Of the API server, without a slash at its end.
        namespace: Where whoever speaks is at home; empty where nothing says so.
        tls: Whom to trust, and one's own certificate if there is one; None for a URL without TLS.
        credentials: The headers that say who speaks, asked for before every request.
        server_hostname: The name that the API server's certificate must have, where that is not the URL's.
        proxy: What stands between, with its headers.
        proxy_from_environment: Whether HTTPS_PROXY and its kin are followed.
    """

    url: str
    namespace: str
    tls: ssl.SSLContext | None
    credentials: Callable[[], Awaitable[Mapping[str, str]]]
    server_hostname: str | None = None
    proxy: str | None = None
    proxy_headers: Mapping[str, str] | None = None
    proxy_from_environment: bool = False


def in_pod(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is a pod's."""
    return _HOST in environ


def require_kubeconfig(file: str | None, environ: Mapping[str, str] = os.environ) -> None:
    """Whether there is that file, or where none is named the usual one; the client library would complain of contents.

    Raises:
        ConfigurationError: There is none.
    """
    files = file or environ.get("KUBECONFIG") or "~/.kube/config"
    # Unlike pathlib's, this leaves `~` alone where a container's user has no home.
    found = (os.path.expanduser(name) for name in files.split(os.pathsep))  # noqa: PTH111
    if not any(map(os.path.exists, found)):
        raise ConfigurationError(f"no cluster to connect to: there is no {files}")


def pod_access(
    environ: Mapping[str, str] = os.environ,
    directory: Path = SERVICE_ACCOUNT_DIR,
    token_seconds: float = _TOKEN_SECONDS,
) -> Access:
    """As the pod that this process runs in; the client library, which does the same, costs 36 MiB to import.

    Args:
        environ: Names the API server's address.
        directory: Holds the credentials.
        token_seconds: How old the token may be that was read last.

    Raises:
        ConfigurationError: It is no pod's, or what is mounted there is no good.
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
    except OSError as error:  # A CA file without a certificate is one of them.
        raise ConfigurationError(f"no cluster to connect to: {error}") from error


class _MountedToken:
    """The token of the pod's service account, which the kubelet renews."""

    def __init__(self, file: Path, seconds: float) -> None:
        self._file = file
        self._seconds = seconds
        self._token = ""
        self._until = 0.0

    async def headers(self) -> Mapping[str, str]:
        """What names the account."""
        if time.monotonic() >= self._until:
            self._token = self._read()
            self._until = time.monotonic() + self._seconds
        return {"Authorization": f"Bearer {self._token}"}

    def _read(self) -> str:
        try:
            token = self._file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ApiUnavailableError(f"the token cannot be read: {error}") from error
        if not token:
            raise ApiUnavailableError(f"{self._file} is empty")
        return token
