"""Learns what this node is: its uid, the machine under it, its cloud, and whether it is spot capacity.

The uid comes from the settings, or from the first source that knows it. The labels of the Node object say whether the
node is spot, and its provider id names the cloud.
"""

import asyncio
import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace

import msgspec
import structlog

from node_agent.notices import MachinePrice, NodeIdentity, NoticeSubject, NoticeSubjectKind, SourceName
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import Resource, ResourceClient, Selection
from servicekit.kubernetes.objects import Metadata
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer
from servicekit.spot import read_labels

_NODES = Resource(group="", version="v1", kind="Node", plural="nodes", namespaced=False)
# Seconds that the first poll waits for the labels: a notice may be this late while the API server is away.
_LABEL_TIMEOUT = 2.0
_LABELLED_PRICES = {True: MachinePrice.SPOT, False: MachinePrice.ON_DEMAND, None: MachinePrice.UNKNOWN}
_PROVIDERS = {
    "aws://": SourceName("aws"),
    "gce://": SourceName("gcp"),
    "azure://": SourceName("azure"),
    "qcloud://": SourceName("tencent"),
}
# Such as `cn-beijing.i-2ze0a1b2c3d4`.
_ALIYUN_PROVIDER = re.compile(r"(alicloud://)?[a-z]{2}-[a-z0-9-]+\.i-[0-9a-z]+")


class ThisNode:
    """The subject of every notice about this node, once its uid is known.

    Args:
        name: The node's name.
        uid: Empty: the first source that knows it calls `resolve`.
        on_described: Called after each description of the machine.

    Attributes:
        subject: None until the uid is known.
        machine: The machine as sources and labels have described it so far; its uid is not the subject's.
        known: Set once the uid is known.
        described: Set by the first description of the machine.
    """

    def __init__(self, name: str, uid: str, on_described: Callable[[], None] | None = None) -> None:
        self.name = name
        self.subject = NoticeSubject(NoticeSubjectKind.NODE, name, uid) if uid else None
        self.machine = NodeIdentity("")
        self._on_described = on_described
        self.known = asyncio.Event()
        self.described = asyncio.Event()
        if uid:
            self.known.set()

    def describe(self, machine: NodeIdentity) -> None:
        """Adds a description of the machine.

        The first value of each fact stays, and a description by a second cloud is ignored.
        """
        known = self.machine
        if not (known.cloud and machine.cloud and machine.cloud != known.cloud):
            names = [each.name for each in fields(NodeIdentity)]
            unknown = [name for name in names if getattr(known, name) in {"", MachinePrice.UNKNOWN}]
            self.machine = replace(known, **{name: getattr(machine, name) for name in unknown})
        self.described.set()
        if self._on_described is not None:
            self._on_described()

    def resolve(self, identity: NodeIdentity) -> None:
        """Adds the identity of the machine from a source. The first uid stays."""
        self.describe(identity)
        structlog.get_logger().info(
            "node.identified",
            uid=identity.uid,
            region=identity.region,
            zone=identity.zone,
            instance_type=identity.instance_type,
            cloud=identity.cloud,
            price_class=identity.price_class.name.lower(),
        )
        if self.subject is None:
            self.subject = NoticeSubject(NoticeSubjectKind.NODE, self.name, identity.uid)
            self.known.set()


async def wait_within(seconds: float, event: asyncio.Event) -> None:
    """Waits for an event, at most that many seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


@dataclass(eq=False, slots=True)
class NodeObject:
    """The Node object as far as it is known. While its labels are unknown, the node may be spot.

    A needless poll costs less than a missed notice.

    Attributes:
        known: Whether the Node object has been read, or there is none to read.
        not_spot_reason: Why the node cannot be reclaimed, for people; empty: it may be.
        provider_id: The node's `spec.providerID`; empty while it is unknown, and where there is none.
        uid: Empty while it is unknown, and where there is no Node object.
        read: Set once the Node object has been read.
    """

    known: bool
    not_spot_reason: str = ""
    provider_id: str = ""
    uid: str = ""
    read: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait_known(self) -> None:
        """Waits until the Node object is known, but only for a moment."""
        if not self.known:
            await wait_within(_LABEL_TIMEOUT, self.read)


ALWAYS_SPOT = NodeObject(known=True)
"""For agents that cannot read the Node object, and for sources that are polled on every node."""


@dataclass(frozen=True, slots=True)
class LabelledNode:
    """The facts in one version of the Node object.

    Attributes:
        not_spot_reason: The label by which the node is not spot, as `name=value`; empty without one.
        machine: The machine as the labels describe it.
    """

    metadata: Metadata
    not_spot_reason: str
    machine: NodeIdentity
    provider_id: str


class _LabelledMetadata(Metadata, frozen=True, rename="camel"):
    labels: dict[str, str] | None = None


class _ProviderSpec(msgspec.Struct, frozen=True, rename="camel"):
    provider_id: str = msgspec.field(default="", name="providerID")


class _AgentNode(msgspec.Struct, frozen=True):
    metadata: _LabelledMetadata
    spec: _ProviderSpec = _ProviderSpec()


class NodeWatch:
    """Follows the Node object of this node.

    Args:
        server: The API server.
        node: This node. A node that is not spot takes its uid from the cluster, unless a source has told another.
        labels: As `name=value`; a node with any of them is not spot.
        clock: Monotonic instants.
        bulkhead: Keeps what nobody foresaw with the Node.

    Attributes:
        object: What is known of the Node object.
        reflector: Its `run` is a root task, which keeps that up to date.
    """

    def __init__(
        self, server: ApiServer, node: ThisNode, labels: tuple[str, ...], clock: Clock, bulkhead: Bulkhead
    ) -> None:
        self.object = NodeObject(known=False)
        self._node = node
        self._labels = dict(label.split("=", 1) for label in labels)
        client = ResourceClient(server, _NODES, self._decode, Selection(fields=f"metadata.name={node.name}"))
        cache: Cache[LabelledNode] = Cache(_NODES.plural, self._changed, bulkhead)
        self.reflector = Reflector(client, cache, clock, cached=True)

    def _decode(self, data: bytes | msgspec.Raw) -> LabelledNode:
        node = msgspec.json.decode(data, type=_AgentNode)
        labels = node.metadata.labels or {}
        reasons = (f"{name}={value}" for name, value in self._labels.items() if labels.get(name) == value)
        return LabelledNode(
            metadata=Metadata(
                name=node.metadata.name, uid=node.metadata.uid, resource_version=node.metadata.resource_version
            ),
            not_spot_reason=next(reasons, ""),
            machine=machine_of(labels),
            provider_id=node.spec.provider_id,
        )

    def _changed(self, _before: LabelledNode | None, after: LabelledNode | None) -> None:
        if after is None:
            return  # The node object is gone: what was known of it stays.
        reason = after.not_spot_reason
        if reason != self.object.not_spot_reason:
            structlog.get_logger().info("node.spot", spot=not reason, label=reason)
        self._node.describe(after.machine)
        if reason and self._node.subject is None:
            self._node.resolve(NodeIdentity(after.metadata.uid))
        self.object.uid, self.object.not_spot_reason = after.metadata.uid, reason
        self.object.provider_id = after.provider_id
        self.object.known = True
        self.object.read.set()


def machine_of(labels: Mapping[str, str]) -> NodeIdentity:
    """Describes the machine by the node's labels, without its uid. A fact without a label is unknown."""
    read = read_labels(labels)
    return NodeIdentity(
        uid="",
        region=read.region,
        zone=read.zone,
        instance_type=read.instance_type,
        price_class=_LABELLED_PRICES[read.is_spot],
        spot_strategy=read.spot_strategy,
    )


def cloud_of(provider_id: str) -> SourceName | None:
    """Returns the source of the cloud that wrote a node's `spec.providerID`; None for an unknown cloud."""
    if _ALIYUN_PROVIDER.fullmatch(provider_id):
        return SourceName("aliyun")
    return next((source for prefix, source in _PROVIDERS.items() if provider_id.startswith(prefix)), None)
