"""Whether a pod fits a node, by the rules of the Kubernetes scheduler.

https://kubernetes.io/docs/concepts/scheduling-eviction/ : taints, selectors, required node affinity and requests.
"""

import re
from collections.abc import Callable, Mapping

from supervisor.domain.capacity import (
    Demand,
    Effect,
    LabelOperator,
    NodeCapacity,
    Requirement,
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
