"""Defines the requests of a job's pods, the capacity of nodes, and the machines under the nodes.

They hold as much of the scheduler as this supervisor models.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Protocol, Self
from urllib.parse import unquote

from supervisor.domain.ids import NAME_RULE, Host, Instant, is_name

Resources = Mapping[str, int]
"""Amounts by name, such as `cpu` or `nvidia.com/gpu`, in thousandths: 1500 cpu are one and a half cores."""


class Effect(StrEnum):
    """The effect of a taint on pods that do not tolerate it."""

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
class LabelRequirement:
    """A requirement on one label of a node."""

    key: str
    operator: LabelOperator
    values: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """The request of one pod.

    A node must meet all requirements of at least one term of `affinity`; without terms any node will do. `apart`: no
    two of these pods may be on one node.
    """

    requests: Resources = field(default_factory=dict)
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    affinity: tuple[tuple[LabelRequirement, ...], ...] = ()
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
    """A number of pods with equal requests."""

    demand: Demand
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceRequest:
    """The requests of all pods of one run of a job.

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
        """The pods that do not scale: every run has them."""
        return self.others if self.launcher is None else (Pods(self.launcher, 1), *self.others)

    @property
    def fixed(self) -> int:
        """The number of workers that do not scale: every run has them."""
        return sum(each.count for each in self.others)


class PriceClass(StrEnum):
    """Whether the cloud may reclaim a machine at any time. SPOT stands for preemptible and BestEffort as well."""

    UNKNOWN = "unknown"
    SPOT = "spot"
    ON_DEMAND = "on_demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine under a node, as its agent and the node's labels describe it; unknown fields are empty.

    `spot_strategy` is the cloud's own word for how the price is set. Until `protected_until` the cloud does not reclaim
    the machine; None: it promises nothing.
    """

    cloud: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    price_class: PriceClass = PriceClass.UNKNOWN
    spot_strategy: str = ""
    protected_until: Instant | None = None

    def or_else(self, other: Self) -> Self:
        """This machine, with its unknown fields taken from `other`."""
        known = self.price_class is not PriceClass.UNKNOWN
        if (
            (self.cloud or not other.cloud)
            and (self.region or not other.region)
            and (self.zone or not other.zone)
            and (self.instance_type or not other.instance_type)
            and (known or other.price_class is PriceClass.UNKNOWN)
            and (self.spot_strategy or not other.spot_strategy)
            and (self.protected_until is not None or other.protected_until is None)
        ):
            return self  # Mostly the other one knows no more, and 10,000 new machines take 20 ms.
        return type(self)(
            cloud=self.cloud or other.cloud,
            region=self.region or other.region,
            zone=self.zone or other.zone,
            instance_type=self.instance_type or other.instance_type,
            price_class=self.price_class if known else other.price_class,
            spot_strategy=self.spot_strategy or other.spot_strategy,
            protected_until=other.protected_until if self.protected_until is None else self.protected_until,
        )

    @property
    def pool_name(self) -> str:
        """The name of its pool; empty if it has none."""
        return MachinePool.name_of(self)


UNKNOWN_MACHINE = Machine()

_UNKNOWN_PART = "?"
_SPECIAL_PARTS = frozenset({_UNKNOWN_PART, ".", ".."})
"""Parts that would be read as another one, or be taken out of an address by a browser, escaped or not."""
_ESCAPES = str.maketrans({each: f"%{ord(each):02X}" for each in "%/ "})
_KNOWN_PARTS = 4096
"""Parts that are remembered as they are written: thousands of machines have a few zones and types."""


@lru_cache(_KNOWN_PARTS)
def _written(part: str) -> str:
    """Writes a part of the name of a pool."""
    if part in _SPECIAL_PARTS:
        return "".join(f"%{ord(each):02X}" for each in part)
    return part.translate(_ESCAPES) or _UNKNOWN_PART


class HasPool(Protocol):
    """Belongs to a pool. What is unknown is empty."""

    @property
    def cloud(self) -> str:
        """The cloud."""

    @property
    def zone(self) -> str:
        """The zone of the cloud."""

    @property
    def instance_type(self) -> str:
        """The type of machine, as the cloud calls it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePool:
    """The machines of one type and price class in one zone of a cloud, which reclaims them alike.

    Unknown fields are empty.
    """

    cloud: str = ""
    zone: str = ""
    instance_type: str = ""
    price_class: PriceClass = PriceClass.UNKNOWN

    @classmethod
    def named(cls, name: str) -> Self:
        """Reads a `name`. A cloud that is left out, as in `/ZONE/TYPE`, is unknown.

        Raises:
            ValueError: It is no name of a pool.
        """
        cloud, zone, instance_type = ("" if part == _UNKNOWN_PART else unquote(part) for part in name.split("/"))
        if not all(map(is_name, (cloud or _UNKNOWN_PART, zone, instance_type))):
            raise ValueError(f"the zone or the type of {name!r} is unknown, or has other than {NAME_RULE}")
        return cls(cloud=cloud, zone=zone, instance_type=instance_type)

    @staticmethod
    def name_of(which: HasPool) -> str:
        """Returns the name of a pool without its price class, `CLOUD/ZONE/TYPE`, in which an unknown cloud is a `?`.

        It is empty unless zone and type are known: less than both says nothing of what is reclaimed together.
        Agents name zones and types, so a part may hold anything: what has a meaning in a name or in an address is
        escaped, as `%2F` for a slash, and `named` reads what was written.
        """
        return MachinePool.label_of(which) if which.zone and which.instance_type else ""

    @staticmethod
    def label_of(which: HasPool) -> str:
        """Returns what is shown of a pool: its name with a `?` for each unknown part; `unknown` if every part is."""
        parts = (which.cloud, which.zone, which.instance_type)
        return "/".join(map(_written, parts)) if any(parts) else "unknown"

    @property
    def name(self) -> str:
        """See `name_of`."""
        return self.name_of(self)

    def says(self, other: Self) -> bool:
        """Whether it says all that another one does: it may be the same, of which more is known."""
        is_priced = other.price_class in (PriceClass.UNKNOWN, self.price_class)
        pairs = ((self.cloud, other.cloud), (self.zone, other.zone), (self.instance_type, other.instance_type))
        return is_priced and all(theirs in ("", ours) for ours, theirs in pairs)

    @property
    def is_known(self) -> bool:
        """Whether all of it is known."""
        parts_known = bool(self.cloud and self.zone and self.instance_type)
        return parts_known and self.price_class is not PriceClass.UNKNOWN


@dataclass(frozen=True, slots=True)
class Placement:
    """The uid of a host's pod, and the pod's node, which is empty while the pod is not bound.

    `terminating`: the pod was asked to terminate. `name` is the pod's own, which may differ from the host's; None if it
    is unknown.
    """

    pod: str
    node: Host
    terminating: bool = False
    name: str | None = None
