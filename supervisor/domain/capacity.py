"""What the pods of a job ask of a node, and what a node has: all that the scheduler looks at and we reckon with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Resources = Mapping[str, int]
"""By name, such as `cpu` or `nvidia.com/gpu`, in thousandths: 1500 cpu are one and a half cores."""


class Effect(StrEnum):
    """What a taint does to pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class LabelOperator(StrEnum):
    """How a requirement on a node's label is meant."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Taint:
    """Keeps pods off a node."""

    key: str
    value: str = ""
    effect: Effect


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """Lets a pod on a node in spite of a taint. No key: of all; no effect: whatever it does; `exists`: any value."""

    key: str = ""
    exists: bool = False
    value: str = ""
    effect: Effect | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """On one label of a node."""

    key: str
    operator: LabelOperator
    values: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one pod asks for.

    `affinity` holds terms, one of which a node must meet, each with requirements, all of which it must meet; no terms
    mean any node. `apart`: no two of these pods on one node.
    """

    requests: Resources = field(default_factory=dict)
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    affinity: tuple[tuple[Requirement, ...], ...] = ()
    apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCapacity:
    """A node that new pods may be bound to as far as it says so itself; `free` is what is allocatable and not taken."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    free: Resources = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequest:
    """What one run of a job asks for: as many workers as it has, and its launcher where that is a pod of its own."""

    worker: Demand
    launcher: Demand | None = None
