"""Builds the components of the PKI that all supervisors of a cluster share."""

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Self

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.errors import ApiUnavailableError, ConfigurationError
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.server import ApiServer
from supervisor.identity.tokens import Tokens
from supervisor.pki.keys import KeysError
from supervisor.pki.renewal import CertificateOptions, CertificateRenewer, KeysSecret
from supervisor.pki.trust import Publish, TrustPublisher, publish_in_config_map, publish_in_webhooks
from supervisor.settings import Settings

if TYPE_CHECKING:
    from supervisor.wiring.app import Task

_HOUR = 3600.0


class PkiService:
    """Keeps the keys of the Secret and a certificate, and publishes the CA. Create it with `open`.

    Attributes:
        tokens: Signs and checks tokens.
        certificate: The certificate to serve; None if no names are set.
        tasks: The root tasks of every replica by name.
    """

    def __init__(
        self, server: ApiServer, renewal: CertificateRenewer, settings: Settings, clock: Clock, bulkhead: Bulkhead
    ) -> None:
        self._server, self._renewal, self._settings = server, renewal, settings
        self._clock, self._bulkhead = clock, bulkhead
        self.tokens = Tokens(renewal.keys.tokens)
        self.certificate = renewal.certificate
        self.tasks: Mapping[str, Task] = {"keys.renewal": renewal.run}

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings, clock: Clock, bulkhead: Bulkhead) -> AsyncIterator[Self]:
        """Reads or creates the keys, and issues a certificate if names are set; waits for an unavailable API server.

        Raises:
            KeysError: The keys cannot be read or created, or are invalid.
            OSError: The certificate cannot be written.
        """
        async with _connected(settings) as server:
            keys_secret = _keys_secret(server, settings, clock)
            options = CertificateOptions(
                directory=settings.data_dir / "tls",
                names=settings.tls_names,
                seconds=settings.tls_leaf_hours * _HOUR,
            )
            renewal = CertificateRenewer(keys_secret, await keys_secret.first(), options, clock, bulkhead)
            yield cls(server, renewal, settings, clock, bulkhead)

    def trusted(self) -> str:
        """Returns the CAs that clients should trust at present, as PEM."""
        return self._renewal.keys.trusted.decode("ascii")

    def leader_tasks(self, may_act: Callable[[], bool]) -> Mapping[str, "Task"]:
        """Builds the root task that publishes the CA, if there are targets."""
        server, settings = self._server, self._settings
        targets: dict[str, Publish] = {}
        if settings.tls_names and settings.ca_config_map:
            key = ObjectKey(settings.namespace or server.namespace, settings.ca_config_map)
            targets[f"ConfigMap {key.name}"] = partial(publish_in_config_map, server, key)
        if settings.tls_names and settings.webhook_name:
            where = f"MutatingWebhookConfiguration {settings.webhook_name}"
            targets[where] = partial(publish_in_webhooks, server, settings.webhook_name)
        if not targets:
            return {}
        publisher = TrustPublisher(targets, lambda: self._renewal.keys.trusted, may_act, self._clock, self._bulkhead)
        return {"keys.publication": publisher.run}


async def tokens(settings: Settings) -> Tokens:
    """Returns the `Tokens` of the supervisors that share the Secret; creates the Secret if there is none.

    Raises:
        KeysError: The Secret cannot be read or created, or is invalid, or the API server is unavailable.
    """
    async with _connected(settings) as server:
        try:
            return Tokens((await _keys_secret(server, settings, Clock()).obtain()).tokens)
        except ApiUnavailableError as error:
            raise KeysError(f"the API server is unavailable: {error}") from error


@asynccontextmanager
async def _connected(settings: Settings) -> AsyncIterator[ApiServer]:
    try:
        server = await ApiServer.connect(os.environ.get("KUBECONFIG"), settings.store_timeout_seconds)
    except ConfigurationError as error:
        raise KeysError(str(error)) from error
    try:
        yield server
    finally:
        await server.close()


def _keys_secret(server: ApiServer, settings: Settings, clock: Clock) -> KeysSecret:
    return KeysSecret(server, ObjectKey(settings.namespace or server.namespace, settings.keys_secret), clock)
