"""What the labels of a Node tell about its machine: the same rule for agents and supervisor. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

_REGION = "topology.kubernetes.io/region"
_ZONE = "topology.kubernetes.io/zone"
_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
# Its value is the cloud's word for how the price is set; the others only tell spot from the rest.
_STRATEGY = "node.alibabacloud.com/spot-strategy"
_IS_SPOT: Mapping[str, Mapping[str, bool]] = {
    _STRATEGY: {"NoSpot": False, "SpotAsPriceGo": True, "SpotWithPriceLimit": True},
    "eks.amazonaws.com/capacityType": {"SPOT": True, "ON_DEMAND": False},
    "cloud.google.com/gke-spot": {"true": True},
    "cloud.google.com/gke-preemptible": {"true": True},
    "cloud.google.com/gke-provisioning": {"spot": True, "preemptible": True, "standard": False},
    "kubernetes.azure.com/scalesetpriority": {"spot": True, "regular": False},
    "karpenter.sh/capacity-type": {"spot": True, "on-demand": False, "reserved": False},
}
# Characters that Kubernetes allows in the value of a label.
_MAX_VALUE = 63


@dataclass(frozen=True, slots=True)
class LabelledMachine:
    """A machine as far as labels tell.

    Attributes:
        region: Empty if it is unknown, as are the next two.
        zone: See `region`.
        instance_type: See `region`.
        is_spot: Whether the cloud can reclaim it; None if that is unknown.
        spot_strategy: The cloud's own word for how the price is set, or empty.
    """

    region: str
    zone: str
    instance_type: str
    is_spot: bool | None
    spot_strategy: str


def read_labels(labels: Mapping[str, str]) -> LabelledMachine:
    """Returns what the labels of a Node tell. Values that are not known are ignored."""

    def value(name: str) -> str:
        return labels.get(name, "")[:_MAX_VALUE]

    known = (values.get(value(name)) for name, values in _IS_SPOT.items())
    return LabelledMachine(
        region=value(_REGION),
        zone=value(_ZONE),
        instance_type=value(_INSTANCE_TYPE),
        is_spot=next((is_spot for is_spot in known if is_spot is not None), None),
        spot_strategy=value(_STRATEGY),
    )
