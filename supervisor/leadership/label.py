"""Keeps the label by which the Service selects the leader on this pod, and off the other pods of the installation."""

from collections.abc import Mapping
from contextlib import suppress

import msgspec

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.faults import Fault
from servicekit.kubernetes.client import Resource, ResourceClient, Selection
from servicekit.kubernetes.errors import ApiError, ConflictError, NotFoundError
from servicekit.kubernetes.objects import Metadata, ObjectKey
from servicekit.kubernetes.server import ApiServer
from servicekit.reconcile import reconcile
from supervisor.leadership.interface import Leadership

LABEL = "job-supervisor.kube-ai.io/leader"
_LEADS = "true"
_INSTALLATION_LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/instance")
"""Labels that all pods of one installation share."""

_PODS = Resource(group="", version="v1", kind="Pod", plural="pods", namespaced=True)
_CHECK_SECONDS = 10.0
"""The interval of checks: without the label the Service has no endpoint. Each check is two requests."""

_RETRY_SECONDS = 0.5


class _Labelled(Metadata, frozen=True, rename="camel"):
    labels: Mapping[str, str] = {}


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Labelled


def _read(data: bytes | msgspec.Raw) -> _Pod:
    return msgspec.json.decode(data, type=_Pod)


class LeaderLabel:
    """Sets the label on `own`, the pod of this process."""

    def __init__(
        self, server: ApiServer, own: ObjectKey, leadership: Leadership, clock: Clock, bulkhead: Bulkhead
    ) -> None:
        self._bulkhead = bulkhead
        self._server = server
        self._own = own
        self._leadership = leadership
        self._fault = Fault("leader label", clock)

    async def run(self) -> None:
        """Root task of the leader; removes the label when it ends."""
        try:
            await reconcile("leader.label", self.once, self._bulkhead)
        finally:
            with suppress(ApiError):
                await self._mark(await self._pods().get(self._own), None)

    async def once(self) -> float:
        """Makes this pod the only one with the label; returns the seconds until the next check."""
        if not self._leadership.may_act():
            return _RETRY_SECONDS
        try:
            await self._reconcile()
        except ApiError as error:
            self._fault.failed(str(error))
            return _RETRY_SECONDS
        self._fault.recovered()
        return _CHECK_SECONDS

    async def _reconcile(self) -> None:
        own = await self._pods().get(self._own)
        if own.metadata.labels.get(LABEL) != _LEADS:
            await self._mark(own, _LEADS)
        # A leader that was killed keeps its label, and its container may have restarted.
        shared = {name: value for name, value in own.metadata.labels.items() if name in _INSTALLATION_LABELS}
        labels = {LABEL: _LEADS, **shared}
        others = (await self._pods(",".join(f"{name}={value}" for name, value in labels.items())).list()).objects
        for other in others:
            if other.metadata.key != self._own:
                with suppress(NotFoundError, ConflictError):
                    await self._mark(other, None)

    async def _mark(self, pod: _Pod, value: str | None) -> None:
        await self._pods().merge(pod, {}, metadata={"labels": {LABEL: value}})

    def _pods(self, labels: str = "") -> ResourceClient[_Pod]:
        return ResourceClient(self._server, _PODS, _read, Selection(namespace=self._own.namespace, labels=labels))
