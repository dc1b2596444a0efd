"""The bin packer: tracks the free resources of nodes while pods are assigned to them."""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping

from supervisor.domain.capacity import (
    Demand,
    Effect,
    LabelOperator,
    NodeCapacity,
    Requirement,
    ResourceRequest,
    Resources,
    Taint,
    Toleration,
)

PODS = "pods"
ONE_POD = 1000
"""Every pod takes one of a node's `pods`; all amounts are in thousandths."""

NODE_NAME = "metadata.name"
"""The key of a requirement on the node's name."""

_KEEPS_OFF = (Effect.NO_SCHEDULE, Effect.NO_EXECUTE)
_INTEGER = re.compile(r"[+-]?\d{1,19}", re.ASCII)


def fits(demand: Demand, node: NodeCapacity) -> bool:
    """Whether the scheduler could bind one such pod to the node now."""
    return how_many(demand, node.free) > 0 and accepts(demand, node)


def accepts(demand: Demand, node: NodeCapacity) -> bool:
    """Whether taints, selector and affinity allow the pod on the node, however much room it has."""
    return (
        all(_tolerated(taint, demand.tolerations) for taint in node.taints)
        and all(node.labels.get(name) == value for name, value in demand.selector.items())
        and (not demand.affinity or any(_meets(term, node) for term in demand.affinity))
    )


def how_many(demand: Demand, free: Resources) -> int:
    """How many such pods the free resources allow."""
    count = free.get(PODS, 0) // ONE_POD
    for name, amount in demand.requests.items():
        if amount > 0:
            count = min(count, free.get(name, 0) // amount)
    return max(0, min(count, 1) if demand.apart else count)


def _tolerated(taint: Taint, tolerations: tuple[Toleration, ...]) -> bool:
    return taint.effect not in _KEEPS_OFF or any(_tolerates(each, taint) for each in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    return (
        toleration.effect in (None, taint.effect)
        and toleration.key in ("", taint.key)
        and (toleration.exists or toleration.value == taint.value)
    )


def _meets(term: tuple[Requirement, ...], node: NodeCapacity) -> bool:
    """A term without requirements matches no node, as in the scheduler."""
    return bool(term) and all(_holds(each, node) for each in term)


def _holds(requirement: Requirement, node: NodeCapacity) -> bool:
    value = node.name if requirement.key == NODE_NAME else node.labels.get(requirement.key)
    return _OPERATORS[requirement.operator](value, requirement.values)


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and _INTEGER.fullmatch(text) else None


def _above(value: str | None, bounds: frozenset[str]) -> bool:
    found, bound = _integer(value), _integer(next(iter(bounds), None))
    return found is not None and bound is not None and found > bound


def _below(value: str | None, bounds: frozenset[str]) -> bool:
    found, bound = _integer(value), _integer(next(iter(bounds), None))
    return found is not None and bound is not None and found < bound


_OPERATORS: Mapping[LabelOperator, Callable[[str | None, frozenset[str]], bool]] = {
    LabelOperator.IN: lambda value, values: value in values,
    LabelOperator.NOT_IN: lambda value, values: value not in values,
    LabelOperator.EXISTS: lambda value, _: value is not None,
    LabelOperator.DOES_NOT_EXIST: lambda value, _: value is None,
    LabelOperator.GT: _above,
    LabelOperator.LT: _below,
}


_PLAIN = frozenset({"cpu", "memory", "ephemeral-storage", PODS})
"""Resources that every node has; all others are scarce."""

_Spread = Mapping[int, int]
"""How many pods go on which node, by the node's index."""


class BinPacker:
    """Assigns room on nodes to pods, all or nothing.

    First fit; nodes with few free accelerators come first, so that launchers go to nodes without accelerators and large
    jobs find whole nodes. The scheduler may place pods differently: the result says that they fit, not where they go.
    """

    def __init__(self, nodes: Iterable[NodeCapacity]) -> None:
        self._free_capacity = sorted(nodes, key=lambda node: (_accelerators(node), node.name))
        self._free: list[Resources] = [node.free for node in self._free_capacity]
        self._accepted: dict[Hashable, dict[int, bool]] = {}

    def take(self, request: ResourceRequest, most: int, size: Callable[[int], int]) -> int:
        """Assigns room to the pods of a job with at most `most` workers; returns how many workers.

        `size` says how many workers a job uses of those that fit; if that is 0, nothing is assigned.
        """
        before = list(self._free)
        fitting = self._fit(request, most)
        count = size(fitting)
        if count and count == fitting:
            return count
        self._free = before
        return self.take(request, count, size) if count else 0

    def hold(self, demand: Demand, count: int) -> None:
        """Reserves room for pods that are not bound yet, as far as there is room."""
        self._give(demand, count)

    def has_room(self, demand: Demand) -> bool:
        """Whether one such pod fits on any node."""
        return next(self._spots(demand), None) is not None

    def _fit(self, request: ResourceRequest, most: int) -> int:
        """Assigns room to as many workers as fit, and to the pods beside them; returns how many workers.

        Without room for all pods beside them there are no workers.
        """
        scaled = most - request.fixed
        if scaled < 0:
            return 0
        before = list(self._free)
        count = self._give(request.worker, scaled)
        if all(self._give(each.demand, each.count) == each.count for each in request.beside):
            return count + request.fixed
        # The workers may have taken the only room for the others.
        self._free = list(before)
        if not self._give_beside(request):
            self._free = before
            return 0
        return self._give(request.worker, scaled) + request.fixed

    def _give_beside(self, request: ResourceRequest) -> bool:
        """Places the pods beside the workers where they cost the fewest workers; returns whether all have room."""
        for each in request.beside:
            for _ in range(each.count):
                spot = self._cheapest(self._spots(each.demand), request.worker, each.demand)
                if spot is None:
                    return False
                self._apply(each.demand, {spot: 1})
        return True

    def _cheapest(self, spots: Iterable[int], worker: Demand, other: Demand) -> int | None:
        cheapest, least = None, 0
        for index in spots:
            cost = self._cost(index, worker, other)
            if cheapest is None or cost < least:
                cheapest, least = index, cost
            if not cost:
                break
        return cheapest

    def _cost(self, index: int, worker: Demand, other: Demand) -> int:
        if not accepts(worker, self._free_capacity[index]):
            return 0
        free = self._free[index]
        return how_many(worker, free) - how_many(worker, _less(free, other, 1))

    def _give(self, demand: Demand, most: int) -> int:
        spread = self._spread(demand, most)
        self._apply(demand, spread)
        return sum(spread.values())

    def _spread(self, demand: Demand, most: int) -> _Spread:
        spread: dict[int, int] = {}
        left = most
        for index in self._spots(demand) if most > 0 else ():
            spread[index] = min(left, how_many(demand, self._free[index]))
            left -= spread[index]
            if not left:
                break
        return spread

    def _spots(self, demand: Demand) -> Iterator[int]:
        """The nodes with room for such a pod. Most are full, which the check of one scarce resource shows quickly."""
        name = min(scarce(demand), default=PODS)
        amount = demand.requests.get(name, ONE_POD)
        accepted = self._accepted.setdefault(pool(demand), {})
        for index, free in enumerate(self._free):
            if free.get(name, 0) < amount or not how_many(demand, free):
                continue
            if index not in accepted:
                accepted[index] = accepts(demand, self._free_capacity[index])
            if accepted[index]:
                yield index

    def _apply(self, demand: Demand, spread: _Spread) -> None:
        for index, count in spread.items():
            self._free[index] = _less(self._free[index], demand, count)


def pool(demand: Demand) -> Hashable:
    """Equal for demands that the same nodes accept, whatever amounts they request."""
    return (tuple(sorted(demand.selector.items())), demand.tolerations, demand.affinity)


def scarce(demand: Demand) -> frozenset[str]:
    """The requested resources that not every node has."""
    return frozenset(name for name, amount in demand.requests.items() if amount > 0).difference(_PLAIN)


def _accelerators(node: NodeCapacity) -> int:
    return sum(amount for name, amount in node.free.items() if name not in _PLAIN)


def _less(free: Resources, demand: Demand, count: int) -> Resources:
    left = dict(free)
    for name, amount in (*demand.requests.items(), (PODS, ONE_POD)):
        left[name] = left.get(name, 0) - amount * count
    return left
