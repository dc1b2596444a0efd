"""Caches all pods and nodes of the cluster, with indexes for frequent queries."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

import structlog

from servicekit.bounds import one_line
from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from servicekit.kubernetes.cache import Cache
from servicekit.kubernetes.client import ResourceClient
from servicekit.kubernetes.objects import ObjectKey
from servicekit.kubernetes.reflector import Reflector
from servicekit.kubernetes.server import ApiServer
from supervisor.cluster.objects import NODES, PODS, Node, Pod, machine_of, node_or_outline, pod_or_outline
from supervisor.domain.capacity import UNKNOWN_MACHINE, Machine, Resources
from supervisor.domain.ids import Host

T = TypeVar("T")
P = TypeVar("P", Pod, Node)

_log = structlog.get_logger()


Hook = Callable[[T | None, T | None], None]
"""A callback for changes; it gets the object before and after the change, and None stands for "does not exist"."""


def call_hooks(bulkhead: Bulkhead, hooks: Iterable[Hook[T]], before: T | None, after: T | None) -> None:
    """Calls all hooks about a change, even if one of them raises.

    Args:
        bulkhead: Confines an unforeseen error to its hook.
        hooks: The hooks.
        before: The object before the change.
        after: The object after it.
    """
    for hook in hooks:
        with bulkhead.guard("watch", hook.__qualname__, retried=False):
            hook(before, after)


class ClusterView:
    """Live copies of all pods and nodes. The caller runs `reflectors`.

    Args:
        server: The API server.
        labels: The labels of a pod that are kept.
        clock: The clock of the reflectors.
        changed: Called after every change, so often that it should only set a flag.
        bulkhead: Confines an unforeseen error to its object.

    Attributes:
        pods, nodes: All of them, by key, live.
        node_uids: The uids of all nodes, by name, live.
        version: Grows with every change of anything that is kept here.
        nodes_version: Grows with every node that comes, goes or is replaced.
        unread: The number of objects that are known in outline only, by the plural of their kind.
        pods_changed, nodes_changed: Hooks that are called with each change.
    """

    def __init__(
        self,
        server: ApiServer,
        labels: frozenset[str],
        clock: Clock,
        changed: Callable[[], None],
        bulkhead: Bulkhead,
    ) -> None:
        pods = ResourceClient(server, PODS, partial(pod_or_outline, labels=labels))
        nodes = ResourceClient(server, NODES, node_or_outline)
        self.pods_changed: list[Hook[Pod]] = []
        self.nodes_changed: list[Hook[Node]] = []
        self._bulkhead = bulkhead
        self._pods: Cache[Pod] = Cache(PODS.plural, self._pod_moved, bulkhead)
        self._nodes: Cache[Node] = Cache(NODES.plural, self._node_moved, bulkhead)
        self._by_uid: dict[str, Pod] = {}
        self._by_node: dict[str, dict[ObjectKey, Pod]] = {}
        self._node_uids: dict[Host, str] = {}
        self._machines: dict[Host, Machine] = {}
        self._taken: dict[str, dict[str, int]] = {}
        self.unread: dict[str, int] = {PODS.plural: 0, NODES.plural: 0}
        self._changed = changed
        self.pods = self._pods.objects
        self.nodes = self._nodes.objects
        self.node_uids: Mapping[Host, str] = MappingProxyType(self._node_uids)
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

    def node(self, name: str) -> Node | None:
        """Returns the node of that name, if it exists."""
        return self._nodes.objects.get(ObjectKey("", name))

    def machine(self, node: Host) -> Machine:
        """Describes the machine under a node, which is unknown if the node does not exist.

        A node with 20 labels takes 30 µs: 10,000 of them would hold up each page that shows all nodes.
        """
        known = self._machines.get(node)
        if known is None:
            found = self.node(node)
            if found is None:
                return UNKNOWN_MACHINE
            known = self._machines[node] = machine_of(found)
        return known

    def pod(self, uid: str) -> Pod | None:
        """Returns the pod of that uid, if it exists."""
        return self._by_uid.get(uid)

    def bound(self, node: str) -> Mapping[ObjectKey, Pod]:
        """Returns the pods that are bound to a node, including ended ones; live while there are any."""
        return MappingProxyType(self._by_node.get(node, {}))

    def taken(self, node: str) -> Resources:
        """Returns the resources that the live pods of a node request; each pod also counts as one of `pods`."""
        return MappingProxyType(self._taken.get(node, {}))

    def _pod_moved(self, before: Pod | None, after: Pod | None) -> None:
        if before is not None:
            self._by_uid.pop(before.metadata.uid, None)
            bound = self._by_node.get(before.node, {})
            bound.pop(before.key, None)
            if not bound:
                self._by_node.pop(before.node, None)
            self._take(before, -1)
        if after is not None:
            self._by_uid[after.metadata.uid] = after
            if after.node:
                self._by_node.setdefault(after.node, {})[after.key] = after
            self._take(after, 1)
        self._tell(PODS.plural, self.pods_changed, before, after)

    def _node_moved(self, before: Node | None, after: Node | None) -> None:
        if before is None or after is None or before.metadata.uid != after.metadata.uid:
            if before is not None:
                del self._node_uids[Host(before.metadata.name)]
            if after is not None:
                self._node_uids[Host(after.metadata.name)] = after.metadata.uid
            self.nodes_version += 1
        if before is not None and (
            after is None or (before.labels, before.provider_id) != (after.labels, after.provider_id)
        ):
            self._machines.pop(Host(before.metadata.name), None)
        self._tell(NODES.plural, self.nodes_changed, before, after)

    def _take(self, pod: Pod, sign: int) -> None:
        """Updates the sums, because thousands of pods are too many to add up for each decision."""
        if pod.over or not pod.node:
            return
        taken = self._taken.setdefault(pod.node, {})
        for name, amount in (*pod.requests.items(), ("pods", 1000)):
            taken[name] = taken.get(name, 0) + sign * amount
            if not taken[name]:
                del taken[name]
        if not taken:
            del self._taken[pod.node]

    def _tell(self, kind: str, hooks: Iterable[Hook[P]], before: P | None, after: P | None) -> None:
        """Calls the hooks about a change. Counts the objects that cannot be decoded, and logs each once.

        A change of the version alone is none: a large cluster has dozens of heartbeats a second.
        """
        if before is not None and before.unread:
            self.unread[kind] -= 1
        if after is not None and after.unread:
            self.unread[kind] += 1
            if before is None or before.unread != after.unread:
                metadata, reason = after.metadata, one_line(after.unread)
                _log.warning(
                    "object.unread", kind=kind, namespace=metadata.namespace, name=metadata.name, reason=reason
                )
        if before is None or after is None or before.metadata.uid != after.metadata.uid:
            is_changed = True
        else:
            is_changed = replace(before, metadata=after.metadata) != after
        if is_changed:
            self.version += 1
            self._changed()
            call_hooks(self._bulkhead, hooks, before, after)
