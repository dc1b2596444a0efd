"""Capacity over time: which nodes are there, which come, and which go with how much notice."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NewType

Node = NewType("Node", str)


@dataclass(frozen=True, slots=True)
class ScheduledNotice:
    """At `at`, the node's metadata announce that it will be gone `lead` seconds later."""

    at: float
    node: Node
    lead: float
    group: str
    synthetic: bool = False


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The announcement is withdrawn; the node stays."""

    at: float
    node: Node


@dataclass(frozen=True, slots=True)
class KillNode:
    """The node is gone, with everything on it."""

    at: float
    node: Node


@dataclass(frozen=True, slots=True)
class AddNode:
    """A node arrives."""

    at: float
    node: Node


Step = ScheduledNotice | Withdraw | KillNode | AddNode

_ORDER: Sequence[type[Step]] = (KillNode, Withdraw, AddNode, ScheduledNotice)
"""Of steps at one instant."""


def in_order(steps: Iterable[Step]) -> tuple[Step, ...]:
    """Returns steps in the order in which they happen. Those of one kind at one instant stay as they are."""
    return tuple(sorted(steps, key=lambda step: (step.at, _ORDER.index(type(step)))))


@dataclass(frozen=True, slots=True)
class ReclaimSchedule:
    """The initial nodes and all later steps in order. `at` counts seconds on the clock."""

    present: tuple[Node, ...]
    steps: tuple[Step, ...]
    seconds: float
