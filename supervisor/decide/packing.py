"""The bin packer: tracks the free resources of nodes while pods are assigned to them."""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator

from supervisor.domain.capacity import (
    Demand,
    Effect,
    LabelOperator,
    LabelRequirement,
    NodeCapacity,
    ResourceRequest,
    Resources,
)

PODS = "pods"
ONE_POD = 1000
"""Every pod takes one of a node's `pods`; all amounts are in thousandths."""

_PLAIN = frozenset({"cpu", "memory", "ephemeral-storage", PODS})
"""Resources that every node has; all others are scarce."""

NODE_NAME = "metadata.name"
"""The key of a requirement on the node's name."""

_KEEPS_OFF = (Effect.NO_SCHEDULE, Effect.NO_EXECUTE)
_INTEGER = re.compile(r"[+-]?\d{1,19}", re.ASCII)


def accepts(demand: Demand, node: NodeCapacity) -> bool:
    """Whether taints, selector and affinity allow the pod on the node. Free resources do not matter."""
    for taint in (each for each in node.taints if each.effect in _KEEPS_OFF):
        if not any(
            each.effect in (None, taint.effect)
            and each.key in ("", taint.key)
            and (each.exists or each.value == taint.value)
            for each in demand.tolerations
        ):
            return False
    if any(node.labels.get(name) != value for name, value in demand.selector.items()):
        return False
    # A term without requirements matches no node, as in the scheduler.
    terms = demand.affinity
    return not terms or any(bool(term) and all(_is_met(each, node) for each in term) for term in terms)


def _is_met(requirement: LabelRequirement, node: NodeCapacity) -> bool:
    """Whether a node meets one requirement. It compares integers only with integers."""
    value = node.name if requirement.key == NODE_NAME else node.labels.get(requirement.key)
    match requirement.operator:
        case LabelOperator.IN:
            return value in requirement.values
        case LabelOperator.NOT_IN:
            return value not in requirement.values
        case LabelOperator.EXISTS:
            return value is not None
        case LabelOperator.DOES_NOT_EXIST:
            return value is None
    bound = next(iter(requirement.values), None)
    if value is None or bound is None or not (_INTEGER.fullmatch(value) and _INTEGER.fullmatch(bound)):
        return False
    return int(value) > int(bound) if requirement.operator is LabelOperator.GT else int(value) < int(bound)


def how_many(demand: Demand, free: Resources) -> int:
    """How many pods with this demand the free resources allow."""
    count = free.get(PODS, 0) // ONE_POD
    for name, amount in demand.requests.items():
        if amount > 0:
            count = min(count, free.get(name, 0) // amount)
    return max(0, min(count, 1) if demand.apart else count)


class BinPacker:
    """Assigns free resources of nodes to pods, all or nothing.

    First fit; nodes with few free accelerators come first, so that launchers go to nodes without accelerators and large
    jobs find whole nodes. The scheduler may place pods differently: the result says that they fit, not where they go.
    """

    def __init__(self, nodes: Iterable[NodeCapacity]) -> None:
        self._free_capacity = sorted(
            nodes,
            key=lambda node: (sum(free for name, free in node.free.items() if name not in _PLAIN), node.name),
        )
        self._free: list[Resources] = [node.free for node in self._free_capacity]
        self._accepted: dict[Hashable, dict[int, bool]] = {}

    def take(self, request: ResourceRequest, most: int, size: Callable[[int], int]) -> int:
        """Assigns resources to the pods of a job with at most `most` workers; returns the number of workers.

        `size` says how many workers a job uses of those that fit; if that is 0, nothing is assigned.
        """
        before = list(self._free)
        fitting = self._fit(request, most)
        count = size(fitting)
        if count and count == fitting:
            return count
        self._free = before
        return self.take(request, count, size) if count else 0

    def give(self, demand: Demand, most: int) -> int:
        """Assigns resources to at most `most` pods, as far as they fit; returns the number of pods."""
        spread: dict[int, int] = {}
        left = most
        for index in self._spots(demand) if most > 0 else ():
            spread[index] = min(left, how_many(demand, self._free[index]))
            left -= spread[index]
            if not left:
                break
        for index, count in spread.items():
            self._free[index] = _less(self._free[index], demand, count)
        return most - left if most > 0 else 0

    def has_room(self, demand: Demand) -> bool:
        """Whether a pod with this demand fits on any node."""
        return next(self._spots(demand), None) is not None

    def _fit(self, request: ResourceRequest, most: int) -> int:
        """Assigns resources to as many workers as fit, and to the other pods; returns the number of workers.

        Without room for all pods beside them there are no workers.
        """
        scaled = most - request.fixed
        if scaled < 0:
            return 0
        before = list(self._free)
        count = self.give(request.worker, scaled)
        if all(self.give(each.demand, each.count) == each.count for each in request.beside):
            return count + request.fixed
        # The workers may have taken the only room for the others.
        self._free = list(before)
        if not self._give_beside(request):
            self._free = before
            return 0
        return self.give(request.worker, scaled) + request.fixed

    def _give_beside(self, request: ResourceRequest) -> bool:
        """Places the other pods where they cost the fewest workers; returns whether all of them fit."""
        for each in (pods.demand for pods in request.beside for _ in range(pods.count)):
            cheapest, least = None, 0
            for index in self._spots(each):
                cost, free = 0, self._free[index]
                if accepts(request.worker, self._free_capacity[index]):
                    cost = how_many(request.worker, free) - how_many(request.worker, _less(free, each, 1))
                if cheapest is None or cost < least:
                    cheapest, least = index, cost
                if not cost:
                    break
            if cheapest is None:
                return False
            self._free[cheapest] = _less(self._free[cheapest], each, 1)
        return True

    def _spots(self, demand: Demand) -> Iterator[int]:
        """The nodes where a pod with this demand fits.

        Most are full, which the check of one scarce resource shows quickly.
        """
        name = min(scarce(demand), default=PODS)
        amount = demand.requests.get(name, ONE_POD)
        # The same nodes accept demands that differ only in the amounts that they request.
        alike = (tuple(sorted(demand.selector.items())), demand.tolerations, demand.affinity)
        accepted = self._accepted.setdefault(alike, {})
        for index, free in enumerate(self._free):
            if free.get(name, 0) < amount or not how_many(demand, free):
                continue
            if index not in accepted:
                accepted[index] = accepts(demand, self._free_capacity[index])
            if accepted[index]:
                yield index


def scarce(demand: Demand) -> frozenset[str]:
    """The requested resources that not every node has."""
    return frozenset(name for name, amount in demand.requests.items() if amount > 0).difference(_PLAIN)


def _less(free: Resources, demand: Demand, count: int) -> Resources:
    left = dict(free)
    for name, amount in (*demand.requests.items(), (PODS, ONE_POD)):
        left[name] = left.get(name, 0) - amount * count
    return left
