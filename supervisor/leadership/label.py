"""The label by which the Service finds the leader: on its own pod, and on no other of its set."""

from collections.abc import Mapping
from contextlib import suppress

import msgspec

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
_SET = ("app.kubernetes.io/name", "app.kubernetes.io/instance")
"""What the pods of one installation have in common."""

_PODS = Resource(group="", version="v1", kind="Pod", plural="pods", namespaced=True)
_LOOK_SECONDS = 10.0
"""A person who takes the label away takes the Service away; two requests each time."""

_RETRY_SECONDS = 0.5


class _Labelled(Metadata, frozen=True, rename="camel"):
    labels: Mapping[str, str] = {}


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Labelled


def _read(data: bytes | msgspec.Raw) -> _Pod:
    return msgspec.json.decode(data, type=_Pod)


class LeaderLabel:
    """Puts it on the pod `own`, which is this process's."""

    def __init__(self, server: ApiServer, own: ObjectKey, leadership: Leadership, clock: Clock) -> None:
        self._server = server
        self._own = own
        self._leadership = leadership
        self._fault = Fault("leader label", clock)

    async def run(self) -> None:
        """Root task of the leader; when it ends it takes the label away."""
        try:
            await reconcile(self.once)
        finally:
            with suppress(ApiError):
                await self._mark(await self._pods().get(self._own), None)

    async def once(self) -> float:
        """Sees to it that only this pod has the label; returns the seconds until the next look."""
        if not self._leadership.may_act():
            return _RETRY_SECONDS
        try:
            await self._settle()
        except ApiError as error:
            self._fault.failed(str(error))
            return _RETRY_SECONDS
        self._fault.recovered()
        return _LOOK_SECONDS

    async def _settle(self) -> None:
        own = await self._pods().get(self._own)
        if own.metadata.labels.get(LABEL) != _LEADS:
            await self._mark(own, _LEADS)
        # One that was killed keeps its label, and its container may be back.
        shared = {name: value for name, value in own.metadata.labels.items() if name in _SET}
        labels = {LABEL: _LEADS, **shared}
        others, _ = await self._pods(",".join(f"{name}={value}" for name, value in labels.items())).list()
        for other in others:
            if other.metadata.key != self._own:
                with suppress(NotFoundError, ConflictError):
                    await self._mark(other, None)

    async def _mark(self, pod: _Pod, value: str | None) -> None:
        await self._pods().merge(pod, {}, metadata={"labels": {LABEL: value}})

    def _pods(self, labels: str = "") -> ResourceClient[_Pod]:
        return ResourceClient(self._server, _PODS, _read, Selection(namespace=self._own.namespace, labels=labels))
