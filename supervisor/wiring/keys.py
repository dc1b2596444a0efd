"""The components of the supervisors' own PKI, and how they are connected."""

import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.errors import ApiUnavailableError, ConfigurationError
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.server import ApiServer
from servicekit.tls import ServerCertificate
from supervisor.identity.tokens import Tokens
from supervisor.leadership.interface import Leadership
from supervisor.pki.errors import KeysError
from supervisor.pki.keys_secret import KeysSecret
from supervisor.pki.renewal import CertificateOptions, CertificateRenewer
from supervisor.pki.trust import CaConfigMap, TrustPublisher, TrustTarget, WebhookConfiguration
from supervisor.settings import Settings

_HOUR = 3600.0

Tasks = Mapping[str, Callable[[], Coroutine[Any, Any, None]]]
"""Root tasks, by name."""


class PkiService:
    """The keys of the Secret, the certificate, and the publication of the CA. Create it with `open`."""

    def __init__(
        self, server: ApiServer, renewal: CertificateRenewer, settings: Settings, clock: Clock, bulkhead: Bulkhead
    ) -> None:
        self._bulkhead = bulkhead
        self._server = server
        self._renewal = renewal
        self._settings = settings
        self._clock = clock
        self.tokens = Tokens(renewal.keys.tokens)

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

    @property
    def certificate(self) -> ServerCertificate | None:
        """The certificate to serve; None if no names are set."""
        return self._renewal.certificate

    def trusted(self) -> str:
        """The CAs that clients should trust at present, as PEM."""
        return self._renewal.keys.trusted.decode("ascii")

    @property
    def tasks(self) -> Tasks:
        """The root tasks of every replica by name."""
        return {"keys.renewal": self._renewal.run}

    def leader_tasks(self, leadership: Leadership) -> Tasks:
        """The root tasks of the leader by name."""
        targets = self._targets()
        if not targets:
            return {}
        publisher = TrustPublisher(
            targets, lambda: self._renewal.keys.trusted, leadership.may_act, self._clock, self._bulkhead
        )
        return {"keys.publication": publisher.run}

    def _targets(self) -> list[TrustTarget]:
        settings = self._settings
        if not settings.tls_names:
            return []
        targets: list[TrustTarget] = []
        if settings.ca_config_map:
            key = ObjectKey(_namespace(self._server, settings), settings.ca_config_map)
            targets.append(CaConfigMap(self._server, key))
        if settings.webhook_name:
            targets.append(WebhookConfiguration(self._server, settings.webhook_name))
        return targets


async def tokens(settings: Settings) -> Tokens:
    """Returns what signs tokens for the supervisors that share the Secret; creates the Secret if there is none.

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
    return KeysSecret(server, ObjectKey(_namespace(server, settings), settings.keys_secret), clock)


def _namespace(server: ApiServer, settings: Settings) -> str:
    return settings.namespace or server.namespace
