"""The free capacity of the nodes of a cluster, updated as pods and nodes change."""

from collections.abc import Collection, Mapping

from supervisor.cluster.objects import Node, Pod
from supervisor.cluster.view import ClusterView
from supervisor.decide.capacity import Nodes
from supervisor.domain.capacity import Effect, NodeCapacity, Resources, Taint
from supervisor.domain.ids import Host

_CORDON = Taint(key="node.kubernetes.io/unschedulable", effect=Effect.NO_SCHEDULE)
"""The taint that stands for a cordon: pods that tolerate everything are still bound to the node."""


class FreeCapacity:
    """The room on each node; only what has changed is worked out again. A pod takes room until it is gone."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._free_capacity: dict[str, NodeCapacity] = {}
        self._open: set[str] = set()
        self._stale = {node.name for node in view.nodes.values()}
        view.pods_changed.add(self._pod_changed)
        view.nodes_changed.add(self._node_changed)

    def nodes(self, noticed: Collection[Host], avoided: Collection[Host] = ()) -> Nodes:
        """The ready nodes that are neither cordoned nor removed: those without a notice, and those with one.

        No job waits for `avoided` nodes, on which nothing is to start: they go later, so a pod there may still run.
        """
        self._refresh()
        closed = {*noticed, *avoided}
        return Nodes(
            usable=[room for name, room in self._free_capacity.items() if name in self._open and name not in closed],
            noticed=[room for name in noticed if (room := self._free_capacity.get(name)) is not None],
        )

    def _refresh(self) -> None:
        for name in self._stale:
            self._free_capacity.pop(name, None)
            self._open.discard(name)
            node = self._view.node(name)
            if node is not None:
                self._free_capacity[name] = _room(node, self._view.taken(name))
                if node.open and self._view.accounted(name):
                    self._open.add(name)
        self._stale.clear()

    def _pod_changed(self, before: Pod | None, after: Pod | None) -> None:
        self._stale.update(pod.node for pod in (before, after) if pod is not None and pod.node)

    def _node_changed(self, before: Node | None, after: Node | None) -> None:
        self._stale.update(node.name for node in (before, after) if node is not None)


def _room(node: Node, taken: Resources) -> NodeCapacity:
    cordon = (_CORDON,) if node.cordoned else ()
    return NodeCapacity(
        name=node.name, labels=node.labels, taints=node.taints + cordon, free=_free(node.allocatable, taken)
    )


def _free(allocatable: Resources, taken: Resources) -> Mapping[str, int]:
    return {name: amount - taken.get(name, 0) for name, amount in allocatable.items()}
