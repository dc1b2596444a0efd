"""Publishes the CAs to trust: in a ConfigMap for clients, and in the webhook configuration for API servers."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

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


Publish = Callable[[bytes], Awaitable[None]]
"""Writes the CAs (PEM) into an object if it has others; raises an `ApiError` if it cannot be read or written."""


async def publish_in_config_map(server: ApiServer, key: ObjectKey, trusted: bytes) -> None:
    """Writes the CAs into a ConfigMap, which is created if it does not exist; its other entries are kept."""
    maps = ResourceClient(server, _CONFIG_MAPS, partial(msgspec.json.decode, type=_TrustConfigMap))
    data = {CA: trusted.decode("ascii")}
    try:
        present = await maps.get(key)
    except NotFoundError:
        await maps.create(key, {"data": data})
    else:
        if (present.data or {}).get(CA) == data[CA]:
            return
        await maps.merge(present, {"data": data})
    _log.info("ca.published", where=f"ConfigMap {key.name}")


async def publish_in_webhooks(server: ApiServer, name: str, trusted: bytes) -> None:
    """Writes the CAs into a MutatingWebhookConfiguration with our webhooks only; the installation creates it."""
    configurations = ResourceClient(server, _WEBHOOKS, partial(msgspec.json.decode, type=_WebhookList))
    present = await configurations.get(ObjectKey("", name))
    others = [at for at, each in enumerate(present.webhooks) if each.client_config.ca_bundle != trusted]
    if not others:
        return
    changes = [{"op": "add", "path": f"/webhooks/{at}/clientConfig/caBundle", "value": trusted} for at in others]
    await configurations.patch(present, changes)
    _log.info("ca.published", where=f"MutatingWebhookConfiguration {name}")


class TrustPublisher:
    """Keeps the CAs published in all targets.

    Args:
        targets: The objects to publish in, by kind and name.
        trusted: Returns the CAs as PEM.
        may_act: Whether this supervisor leads.
        clock: For the log.
        bulkhead: Confines an unforeseen error to its target.
    """

    def __init__(
        self,
        targets: Mapping[str, Publish],
        trusted: Callable[[], bytes],
        may_act: Callable[[], bool],
        clock: Clock,
        bulkhead: Bulkhead,
    ) -> None:
        self._bulkhead = bulkhead
        self._targets = {where: (publish, Fault(f"CA in {where}", clock)) for where, publish in targets.items()}
        self._trusted = trusted
        self._may_act = may_act

    async def run(self) -> None:
        """Root task of the leader: publishes the CAs and keeps them published."""
        await reconcile("trust", self.once, self._bulkhead)

    async def once(self) -> float:
        """Checks all targets; returns the seconds until the next check."""
        if not self._may_act():
            return _RETRY_SECONDS
        settled = True
        for where, (publish, fault) in self._targets.items():
            is_settled = False
            with self._bulkhead.guard("trust", where):
                try:
                    with suppress(ConflictError):  # The next check reads the new version.
                        await publish(self._trusted())
                except ApiError as error:
                    fault.failed(str(error))
                else:
                    fault.recovered()
                    is_settled = True
            settled = settled and is_settled
        return _CHECK_SECONDS if settled else _RETRY_SECONDS
