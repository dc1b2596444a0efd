"""What is known of the machine under a node."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from supervisor.domain.instant import Instant


class PriceClass(StrEnum):
    """Whether the cloud may take a machine back at any time: SPOT stands for preemptible and BestEffort as well."""

    UNKNOWN = "unknown"
    SPOT = "spot"
    ON_DEMAND = "on_demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine under a node, as its agent and the node's labels describe it; what is unknown is empty.

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
        """This machine, with what is unknown of it taken from `other`."""
        known = self.price_class is not PriceClass.UNKNOWN
        return type(self)(
            cloud=self.cloud or other.cloud,
            region=self.region or other.region,
            zone=self.zone or other.zone,
            instance_type=self.instance_type or other.instance_type,
            price_class=self.price_class if known else other.price_class,
            spot_strategy=self.spot_strategy or other.spot_strategy,
            protected_until=other.protected_until if self.protected_until is None else self.protected_until,
        )


UNKNOWN_MACHINE = Machine()
