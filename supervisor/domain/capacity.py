"""What the pods of a job request and what nodes offer, as far as this supervisor models the scheduler."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Resources = Mapping[str, int]
"""Amounts by name, such as `cpu` or `nvidia.com/gpu`, in thousandths: 1500 cpu are one and a half cores."""


class Effect(StrEnum):
    """What a taint does to pods that do not tolerate it."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


class LabelOperator(StrEnum):
    """The operator of a requirement on a node's label."""

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
    """Allows a pod on a node in spite of a taint. No key: every taint; no effect: every effect; `exists`: any value."""

    key: str = ""
    exists: bool = False
    value: str = ""
    effect: Effect | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """A requirement on one label of a node."""

    key: str
    operator: LabelOperator
    values: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What one pod requests.

    A node must meet all requirements of at least one term of `affinity`; without terms any node will do. `apart`: no
    two of these pods may be on one node.
    """

    requests: Resources = field(default_factory=dict)
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    affinity: tuple[tuple[Requirement, ...], ...] = ()
    apart: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCapacity:
    """A node that accepts new pods; `free` are its allocatable resources less those of its pods."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    free: Resources = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequest:
    """What one run of a job requests: for each worker, and for its launcher if that is a pod of its own."""

    worker: Demand
    launcher: Demand | None = None
