"""Whether this node is spot capacity at all, by its label."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
import structlog

from node_agent.identity import ThisNode
from node_agent.sources import NodeIdentity
from servicekit.clock import Clock
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import Resource, ResourceClient, Selection
from servicekit.kubernetes.objects import Metadata
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer

_NODES = Resource(group="", version="v1", kind="Node", plural="nodes", namespaced=False)
# Seconds that the first poll waits for the label: so long a notice may be late where the API server is away.
_PATIENCE = 2.0


class Spot(Protocol):
    """Tells a poller whether there is anything to ask."""

    @property
    def not_spot_reason(self) -> str:
        """Why the node cannot be reclaimed, for people; empty: it may be."""

    async def wait_known(self) -> None:
        """Returns when `not_spot_reason` is known, or will not be soon."""


class AlwaysSpot:
    """Nobody says anything about the node: it may be reclaimed."""

    not_spot_reason = ""

    async def wait_known(self) -> None:
        """There is nothing to wait for."""


ALWAYS = AlwaysSpot()


@dataclass(frozen=True, slots=True)
class Node:
    """This node: the label that denies that it is spot, as `name=value`, or nothing."""

    metadata: Metadata
    not_spot_reason: str


class _Metadata(Metadata, frozen=True, rename="camel"):
    labels: dict[str, str] | None = None


class _Node(msgspec.Struct, frozen=True):
    metadata: _Metadata


class SpotLabel:
    """Follows the labels of this node. Unknown, it may be spot: a poll too many costs less than a missed notice.

    Args:
        server: Where the node is described.
        node: This node; one that is not spot is known by its uid in the cluster where no source tells another.
        labels: Any of these, as `name=value`, denies that a node is spot.
        clock: Monotonic instants.
    """

    def __init__(self, server: ApiServer, node: ThisNode, labels: tuple[str, ...], clock: Clock) -> None:
        self._node = node
        self._labels = dict(label.split("=", 1) for label in labels)
        self._denied = ""
        self._looked = asyncio.Event()
        collection = ResourceClient(server, _NODES, self._read, Selection(fields=f"metadata.name={node.name}"))
        mirror: Cache[Node] = Cache(self._changed)
        self._reflector = Reflector(collection, mirror, clock, cached=True)

    @property
    def not_spot_reason(self) -> str:
        """See `Spot`."""
        return self._denied

    async def wait_known(self) -> None:
        """See `Spot`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await self._looked.wait()

    async def follow(self) -> None:
        """Root task: follows the node for ever."""
        await self._reflector.run()

    def _read(self, data: bytes | msgspec.Raw) -> Node:
        read = msgspec.json.decode(data, type=_Node).metadata
        bare = Metadata(name=read.name, uid=read.uid, resource_version=read.resource_version)
        return Node(bare, _denied(self._labels, read.labels or {}))

    def _changed(self, _before: Node | None, after: Node | None) -> None:
        if after is None:
            return  # What it was, it is until it ends.
        if after.not_spot_reason != self._denied:
            structlog.get_logger().info("node.spot", spot=not after.not_spot_reason, label=after.not_spot_reason)
        self._denied = after.not_spot_reason
        if after.not_spot_reason and self._node.subject is None:
            self._node.resolve(NodeIdentity(after.metadata.uid))
        self._looked.set()


def _denied(asked: Mapping[str, str], labels: Mapping[str, str]) -> str:
    return next((f"{name}={value}" for name, value in asked.items() if labels.get(name) == value), "")
