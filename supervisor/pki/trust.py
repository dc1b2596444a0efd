"""Publishes the CAs to trust: in a ConfigMap for clients, and in the webhook configuration for API servers."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

import msgspec
import structlog

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.faults import Fault
from servicekit.kubernetes.client import Resource, ResourceClient
from servicekit.kubernetes.errors import ApiError, ConflictError, NotFoundError
from servicekit.kubernetes.objects import Metadata, ObjectKey
from servicekit.kubernetes.server import ApiServer
from servicekit.reconcile import reconcile

CA = "ca.crt"
_CONFIG_MAPS = Resource(group="", version="v1", kind="ConfigMap", plural="configmaps", namespaced=True)
_WEBHOOKS = Resource(
    group="admissionregistration.k8s.io",
    version="v1",
    kind="MutatingWebhookConfiguration",
    plural="mutatingwebhookconfigurations",
    namespaced=False,
)
_CHECK_SECONDS = 10.0
"""The interval of checks, as a change by somebody else would break clients; each check is one small request."""

_RETRY_SECONDS = 2.0

_log = structlog.get_logger()


class _TrustConfigMap(msgspec.Struct, frozen=True):
    metadata: Metadata
    data: Mapping[str, str] | None = None


class _ClientConfig(msgspec.Struct, frozen=True, rename="camel"):
    ca_bundle: bytes | None = None


class _Webhook(msgspec.Struct, frozen=True, rename="camel"):
    client_config: _ClientConfig


class _WebhookList(msgspec.Struct, frozen=True):
    metadata: Metadata
    webhooks: Sequence[_Webhook] = ()


class TrustTarget(Protocol):
    """An object in which the CAs are published."""

    async def publish(self, trusted: bytes) -> None:
        """Writes the CAs (PEM) if the object has others.

        Raises:
            ApiError: The object could not be read or written.
        """

    def __str__(self) -> str:
        """The kind and name of the object, for the log."""


class CaConfigMap:
    """A ConfigMap, which is created if it does not exist; its other entries are kept."""

    def __init__(self, server: ApiServer, key: ObjectKey) -> None:
        self._maps = ResourceClient(server, _CONFIG_MAPS, partial(msgspec.json.decode, type=_TrustConfigMap))
        self._key = key

    async def publish(self, trusted: bytes) -> None:
        data = {CA: trusted.decode("ascii")}
        try:
            present = await self._maps.get(self._key)
        except NotFoundError:
            await self._maps.create(self._key, {"data": data})
        else:
            if (present.data or {}).get(CA) == data[CA]:
                return
            await self._maps.merge(present, {"data": data})
        _log.info("ca.published", where=str(self))

    def __str__(self) -> str:
        return f"ConfigMap {self._key.name}"


class WebhookConfiguration:
    """A MutatingWebhookConfiguration with our webhooks only; the installation creates it."""

    def __init__(self, server: ApiServer, name: str) -> None:
        self._configurations = ResourceClient(server, _WEBHOOKS, partial(msgspec.json.decode, type=_WebhookList))
        self._key = ObjectKey("", name)

    async def publish(self, trusted: bytes) -> None:
        present = await self._configurations.get(self._key)
        others = [at for at, each in enumerate(present.webhooks) if each.client_config.ca_bundle != trusted]
        if not others:
            return
        changes = [{"op": "add", "path": f"/webhooks/{at}/clientConfig/caBundle", "value": trusted} for at in others]
        await self._configurations.patch(present, changes)
        _log.info("ca.published", where=str(self))

    def __str__(self) -> str:
        return f"MutatingWebhookConfiguration {self._key.name}"


class TrustPublisher:
    """Keeps the CAs published in all targets.

    Args:
        targets: The objects to publish in.
        trusted: Returns the CAs as PEM.
        may_act: Whether this supervisor leads.
        clock: For the log.
        bulkhead: Confines an unforeseen error to its target.
    """

    def __init__(
        self,
        targets: Sequence[TrustTarget],
        trusted: Callable[[], bytes],
        may_act: Callable[[], bool],
        clock: Clock,
        bulkhead: Bulkhead,
    ) -> None:
        self._bulkhead = bulkhead
        self._faults = {target: Fault(f"CA in {target}", clock) for target in targets}
        self._trusted = trusted
        self._may_act = may_act

    async def run(self) -> None:
        """Root task of the leader."""
        await reconcile("trust", self.once, self._bulkhead)

    async def once(self) -> float:
        """Checks all targets; returns the seconds until the next check."""
        if not self._may_act():
            return _RETRY_SECONDS
        settled = True
        for target, fault in self._faults.items():
            is_settled = False
            with self._bulkhead.guard("trust", str(target)):
                try:
                    with suppress(ConflictError):  # The next check reads the new version.
                        await target.publish(self._trusted())
                except ApiError as error:
                    fault.failed(str(error))
                else:
                    fault.recovered()
                    is_settled = True
            settled = settled and is_settled
        return _CHECK_SECONDS if settled else _RETRY_SECONDS
