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


@dataclass(frozen=True, slots=True)
class Pods:
    """So many pods that request the same."""

    demand: Demand
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequest:
    """What one run of a job requests.

    Attributes:
        worker: For each worker that is none of the others.
        launcher: For its launcher, if that is a pod of its own; it is no worker.
        others: The workers that every run has and that request something else, such as parameter servers.
    """

    worker: Demand
    launcher: Demand | None = None
    others: tuple[Pods, ...] = ()

    @property
    def beside(self) -> tuple[Pods, ...]:
        """The pods of a run whatever its size."""
        return self.others if self.launcher is None else (Pods(self.launcher, 1), *self.others)

    @property
    def fixed(self) -> int:
        """How many workers every run has."""
        return sum(each.count for each in self.others)
