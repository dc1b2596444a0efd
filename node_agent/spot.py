"""Follows the Node object: by its labels the node is spot capacity or not, and its provider id names the cloud."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
import structlog

from node_agent import labels as node_labels
from node_agent.identity import ThisNode
from node_agent.sources import NodeIdentity
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import Resource, ResourceClient, Selection
from servicekit.kubernetes.objects import Metadata
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer

_NODES = Resource(group="", version="v1", kind="Node", plural="nodes", namespaced=False)
# Seconds that the first poll waits for the labels: a notice may be this late while the API server is away.
_LABEL_TIMEOUT = 2.0


class Spot(Protocol):
    """Tells a poller whether the node may be reclaimed."""

    @property
    def not_spot_reason(self) -> str:
        """Why the node cannot be reclaimed, for people; empty: it may be."""

    @property
    def known(self) -> bool:
        """Whether the Node object has been read, or there is none to read."""

    @property
    def provider_id(self) -> str:
        """The node's `spec.providerID`; empty while it is unknown, and where there is none."""

    @property
    def uid(self) -> str:
        """The uid of the Node object; empty while it is unknown, and where there is none."""

    async def wait_known(self) -> None:
        """Returns when `not_spot_reason` is known, or after a moment in which it did not become known."""


class AlwaysSpot:
    """For agents that cannot read the node's labels: the node may be reclaimed."""

    not_spot_reason = ""
    known = True
    provider_id = ""
    uid = ""

    async def wait_known(self) -> None:
        return


ALWAYS = AlwaysSpot()


@dataclass(frozen=True, slots=True)
class Node:
    """This node.

    Attributes:
        not_spot_reason: The label by which the node is not spot, as `name=value`; empty without one.
        machine: What the labels tell of the machine.
    """

    metadata: Metadata
    not_spot_reason: str
    machine: NodeIdentity
    provider_id: str


class _Metadata(Metadata, frozen=True, rename="camel"):
    labels: dict[str, str] | None = None


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    provider_id: str = msgspec.field(default="", name="providerID")


class _Node(msgspec.Struct, frozen=True):
    metadata: _Metadata
    spec: _Spec = _Spec()


class SpotLabel:
    """Follows the labels of this node. While they are unknown, the node may be spot.

    A needless poll costs less than a missed notice.

    Args:
        server: The API server.
        node: This node. A node that is not spot takes its uid from the cluster, unless a source has told another.
        labels: As `name=value`; a node with any of them is not spot.
        clock: Monotonic instants.
        bulkhead: Keeps what nobody foresaw with the Node.
    """

    def __init__(
        self, server: ApiServer, node: ThisNode, labels: tuple[str, ...], clock: Clock, bulkhead: Bulkhead
    ) -> None:
        self._node = node
        self._labels = dict(label.split("=", 1) for label in labels)
        self._not_spot_reason = self._provider_id = self._uid = ""
        self._known = asyncio.Event()
        client = ResourceClient(server, _NODES, self._read, Selection(fields=f"metadata.name={node.name}"))
        cache: Cache[Node] = Cache(_NODES.plural, self._changed, bulkhead)
        self._reflector = Reflector(client, cache, clock, cached=True)

    @property
    def not_spot_reason(self) -> str:
        return self._not_spot_reason

    @property
    def known(self) -> bool:
        return self._known.is_set()

    @property
    def provider_id(self) -> str:
        return self._provider_id

    @property
    def uid(self) -> str:
        return self._uid

    async def wait_known(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LABEL_TIMEOUT):
                await self._known.wait()

    async def follow(self) -> None:
        """Root task: keeps the node's labels up to date."""
        await self._reflector.run()

    def _read(self, data: bytes | msgspec.Raw) -> Node:
        node = msgspec.json.decode(data, type=_Node)
        read = node.metadata
        bare = Metadata(name=read.name, uid=read.uid, resource_version=read.resource_version)
        labels = read.labels or {}
        return Node(bare, _matching(self._labels, labels), node_labels.describe(labels), node.spec.provider_id)

    def _changed(self, _before: Node | None, after: Node | None) -> None:
        if after is None:
            return  # The node object is gone: what was known of it stays.
        if after.not_spot_reason != self._not_spot_reason:
            structlog.get_logger().info("node.spot", spot=not after.not_spot_reason, label=after.not_spot_reason)
        self._not_spot_reason = after.not_spot_reason
        self._provider_id, self._uid = after.provider_id, after.metadata.uid
        self._node.describe(after.machine)
        if after.not_spot_reason and self._node.subject is None:
            self._node.resolve(NodeIdentity(after.metadata.uid))
        self._known.set()


def _matching(wanted: Mapping[str, str], labels: Mapping[str, str]) -> str:
    return next((f"{name}={value}" for name, value in wanted.items() if labels.get(name) == value), "")
