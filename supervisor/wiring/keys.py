"""The wiring list of what the supervisors of a cluster sign and serve with, where they keep it themselves."""

import os
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

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
    """The keys of the Secret, and what follows from them. Open with `open`."""

    def __init__(self, server: ApiServer, renewal: CertificateRenewer, settings: Settings, clock: Clock) -> None:
        self._server = server
        self._renewal = renewal
        self._settings = settings
        self._clock = clock
        self.tokens = Tokens(renewal.keys.tokens)

    @classmethod
    @asynccontextmanager
    async def open(cls, settings: Settings, clock: Clock) -> AsyncIterator[Self]:
        """Has the keys, and a certificate where names are set for one; waits for an API server that is away.

        Raises:
            KeysError: They cannot be had, or are no good.
            OSError: The certificate cannot be written.
        """
        async with _connected(settings) as server:
            keys_secret = _keys_secret(server, settings, clock)
            terms = CertificateOptions(
                directory=settings.data_dir / "tls",
                names=settings.tls_names,
                seconds=settings.tls_leaf_hours * _HOUR,
            )
            yield cls(server, CertificateRenewer(keys_secret, await keys_secret.first(), terms, clock), settings, clock)

    @property
    def certificate(self) -> ServerCertificate | None:
        """What is served; None where no names are set."""
        return self._renewal.certificate

    def trusted(self) -> str:
        """PEM: those that clients of that certificate are to trust, as they are now."""
        return self._renewal.keys.trusted.decode("ascii")

    @property
    def tasks(self) -> Tasks:
        """Root tasks, also of a supervisor that does not lead."""
        return {"keys.renewal": self._renewal.run}

    def leading(self, leadership: Leadership) -> Tasks:
        """Root tasks of the leader."""
        places = self._places()
        if not places:
            return {}
        publication = TrustPublisher(places, lambda: self._renewal.keys.trusted, leadership.may_act, self._clock)
        return {"keys.publication": publication.run}

    def _places(self) -> list[TrustTarget]:
        settings = self._settings
        if not settings.tls_names:
            return []
        places: list[TrustTarget] = []
        if settings.ca_config_map:
            key = ObjectKey(_namespace(self._server, settings), settings.ca_config_map)
            places.append(CaConfigMap(self._server, key))
        if settings.webhook_name:
            places.append(WebhookConfiguration(self._server, settings.webhook_name))
        return places


async def tokens(settings: Settings) -> Tokens:
    """What makes tokens that the supervisors of the Secret take; makes the Secret where there is none.

    Raises:
        KeysError: It cannot be had, or is no good, or the API server is away.
    """
    async with _connected(settings) as server:
        try:
            return Tokens((await _keys_secret(server, settings, Clock()).obtain()).tokens)
        except ApiUnavailableError as error:
            raise KeysError(f"the API server is away: {error}") from error


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
