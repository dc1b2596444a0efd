"""The cache of all pods and nodes of the cluster, with indexes for frequent queries."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import msgspec
import structlog

from servicekit.bounds import one_line
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.objects import NODES, PODS, Node, Pod
from supervisor.cluster.reading import node_or_outline, pod_or_outline
from supervisor.domain.capacity import Resources
from supervisor.domain.ids import Host

T = TypeVar("T")

_log = structlog.get_logger()


class Hooks(Generic[T]):
    """Callbacks for changes, called with the object before and after the change; None stands for "does not exist".

    One that raises keeps no other from being called.
    """

    def __init__(self, bulkhead: Bulkhead) -> None:
        self._bulkhead = bulkhead
        self._hooks: list[Callable[[T | None, T | None], None]] = []

    def add(self, hook: Callable[[T | None, T | None], None]) -> None:
        """Adds a callback."""
        self._hooks.append(hook)

    def call(self, before: T | None, after: T | None) -> None:
        """Calls all callbacks."""
        for hook in self._hooks:
            with self._bulkhead.guard("watch", hook.__qualname__, retried=False):
                hook(before, after)


class _Groups:
    """Pods grouped by a name, such as their node's; pods with an empty name are not kept."""

    def __init__(self) -> None:
        self._members: dict[str, dict[ObjectKey, Pod]] = {}

    def of(self, name: str) -> Mapping[ObjectKey, Pod]:
        """The pods of a group; a live view while the group has members."""
        return MappingProxyType(self._members.get(name, {}))

    def add(self, name: str, pod: Pod) -> None:
        """Adds or updates a pod."""
        if name:
            self._members.setdefault(name, {})[pod.key] = pod

    def remove(self, name: str, pod: Pod) -> None:
        """Removes a pod if it is in the group."""
        members = self._members.get(name, {})
        members.pop(pod.key, None)
        if not members:
            self._members.pop(name, None)


class ClusterView:
    """Pods and nodes, live. The caller runs `reflectors`.

    Args:
        server: The API server.
        labels: The labels of a pod that are kept.
        clock: The clock of the reflectors.
        changed: Called after every change, so often that it should only set a flag.
        bulkhead: Keeps what nobody foresaw with its object.

    Attributes:
        version: Grows with every change of anything that is kept here.
        nodes_version: Grows with every node that comes, goes or is replaced.
        pods_changed, nodes_changed: For those who need to know what has changed.
    """

    def __init__(
        self,
        server: ApiServer,
        labels: frozenset[str],
        clock: Clock,
        changed: Callable[[], None],
        bulkhead: Bulkhead,
    ) -> None:
        def decode_pod(data: bytes | msgspec.Raw) -> Pod:
            return pod_or_outline(data, labels)

        pods, nodes = ResourceClient(server, PODS, decode_pod), ResourceClient(server, NODES, node_or_outline)
        self.pods_changed = Hooks[Pod](bulkhead)
        self.nodes_changed = Hooks[Node](bulkhead)
        self._pods: Cache[Pod] = Cache(PODS.plural, self._pod_moved, bulkhead)
        self._nodes: Cache[Node] = Cache(NODES.plural, self._node_moved, bulkhead)
        self._by_uid: dict[str, Pod] = {}
        self._by_node = _Groups()
        self._node_uids: dict[Host, str] = {}
        self._taken: dict[str, dict[str, int]] = {}
        self._unread: dict[str, set[str]] = {PODS.plural: set(), NODES.plural: set()}
        self._changed = changed
        self.version = 0
        self.nodes_version = 0
        self.reflectors: tuple[Reflector[Any], ...] = (
            Reflector(pods, self._pods, clock),
            Reflector(nodes, self._nodes, clock),
        )
        self.pod_collection = pods

    @property
    def synced(self) -> bool:
        """Whether the caches are complete; False while the API server is unavailable."""
        return all(each.trouble is None for each in self.reflectors)

    @property
    def pods(self) -> Mapping[ObjectKey, Pod]:
        """All of them."""
        return self._pods.objects

    @property
    def nodes(self) -> Mapping[ObjectKey, Node]:
        """All of them."""
        return self._nodes.objects

    def node(self, name: str) -> Node | None:
        """The node of that name, if it exists."""
        return self._nodes.objects.get(ObjectKey("", name))

    @property
    def node_uids(self) -> Mapping[Host, str]:
        """Of all nodes, by name, live."""
        return MappingProxyType(self._node_uids)

    def pod(self, uid: str) -> Pod | None:
        """The pod of that uid, if it exists."""
        return self._by_uid.get(uid)

    def bound(self, node: str) -> Mapping[ObjectKey, Pod]:
        """The pods that are bound to a node, including ended ones."""
        return self._by_node.of(node)

    def taken(self, node: str) -> Resources:
        """The resources that the live pods of a node request; each pod also counts as one of `pods`."""
        return MappingProxyType(self._taken.get(node, {}))

    def accounted(self, node: str) -> bool:
        """Whether the requests of all pods that are bound to a node are known."""
        return all(not pod.unread or pod.over for pod in self.bound(node).values())

    @property
    def unread(self) -> Mapping[str, int]:
        """The number of objects that are known in outline only, by kind."""
        return {kind: len(uids) for kind, uids in self._unread.items()}

    def _pod_moved(self, before: Pod | None, after: Pod | None) -> None:
        self._note(PODS.plural, before, after)
        if before is not None:
            self._by_uid.pop(before.metadata.uid, None)
            self._by_node.remove(before.node, before)
            self._take(before, -1)
        if after is not None:
            self._by_uid[after.metadata.uid] = after
            self._by_node.add(after.node, after)
            self._take(after, 1)
        if _differ(before, after):
            self._moved()
            self.pods_changed.call(before, after)

    def _node_moved(self, before: Node | None, after: Node | None) -> None:
        self._note(NODES.plural, before, after)
        if before is None or after is None or before.metadata.uid != after.metadata.uid:
            self._replace_node(before, after)
        if _differ(before, after):
            self._moved()
            self.nodes_changed.call(before, after)

    def _replace_node(self, before: Node | None, after: Node | None) -> None:
        if before is not None:
            del self._node_uids[Host(before.name)]
        if after is not None:
            self._node_uids[Host(after.name)] = after.metadata.uid
        self.nodes_version += 1

    def _take(self, pod: Pod, sign: int) -> None:
        """Updates the sums: thousands of pods are too many to add up for each decision."""
        if pod.over or not pod.node:
            return
        taken = self._taken.setdefault(pod.node, {})
        for name, amount in (*pod.requests.items(), ("pods", 1000)):
            taken[name] = taken.get(name, 0) + sign * amount
            if not taken[name]:
                del taken[name]
        if not taken:
            del self._taken[pod.node]

    def _note(self, kind: str, before: Pod | Node | None, after: Pod | Node | None) -> None:
        """Counts the objects that could not be decoded, and logs each once."""
        if before is not None:
            self._unread[kind].discard(before.metadata.uid)
        if after is None or not after.unread:
            return
        self._unread[kind].add(after.metadata.uid)
        if before is None or before.unread != after.unread:
            metadata, reason = after.metadata, one_line(after.unread)
            _log.warning("object.unread", kind=kind, namespace=metadata.namespace, name=metadata.name, reason=reason)

    def _moved(self) -> None:
        self.version += 1
        self._changed()


P = TypeVar("P", Pod, Node)


def _differ(before: P | None, after: P | None) -> bool:
    """Whether more than the version has changed: kubelet heartbeats alone are dozens a second in a large cluster."""
    if before is None or after is None or before.metadata.uid != after.metadata.uid:
        return True
    return replace(before, metadata=after.metadata) != after
