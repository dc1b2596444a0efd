"""Access by a kubeconfig file. The client library reads it, as such a file may have a great many things."""

import ssl
import sys
from collections.abc import Mapping
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from servicekit.kubernetes.access import Access
from servicekit.kubernetes.errors import ApiUnavailableError, ConfigurationError

# The client library imports this one where it is installed, as in a checkout, and with it 3.5 s of jsonschema. It does
# without, and we never validate.
_VALIDATES = sys.modules.get("kubernetes_validate")
sys.modules["kubernetes_validate"] = _VALIDATES  # type: ignore[assignment]  # None keeps it from being imported.
from kubernetes_asyncio.client.configuration import Configuration  # noqa: E402
from kubernetes_asyncio.config import ConfigException, load_kube_config  # noqa: E402

if _VALIDATES is None:
    del sys.modules["kubernetes_validate"]


async def kubeconfig_access(file: str | None, context: str | None = None) -> Access:
    """Reads the file, or `~/.kube/config` if none is named, for a context, by default its current one.

    Raises:
        ConfigurationError: The file is missing or not usable.
    """
    configuration = Configuration()
    try:
        loader = await load_kube_config(file, context=context, client_configuration=configuration, persist_config=False)
        return Access(
            url=str(configuration.host),
            namespace=(loader.current_context or {})["context"].get("namespace", ""),
            tls=_tls(configuration),
            credentials=_Credentials(configuration).headers,
            server_hostname=configuration.tls_server_name,
            proxy=configuration.proxy or _proxy_of_environment(str(configuration.host)),
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

    Read once: aiohttp would read it for every request, and ~/.netrc as well, each in a thread.
    """
    parts = urlsplit(url)
    return None if proxy_bypass(parts.hostname or "") else getproxies().get(parts.scheme)


def _tls(configuration: Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.disable_strict_ssl_verification:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


class _Credentials:
    """A token from the file, or from a program that the file names and that runs again when the token expires."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    async def headers(self) -> Mapping[str, str]:
        """Returns the headers that authenticate the user."""
        try:
            settings = await self._configuration.auth_settings()
        except ConfigException as error:
            raise ApiUnavailableError(f"no credentials: {error}") from error
        return {each["key"]: each["value"] for each in settings.values() if each["value"]}
