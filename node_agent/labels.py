"""Reads from the labels of a node what they tell of the machine. Pure."""

from collections.abc import Mapping

from node_agent.sources import NodeIdentity, PriceClass

_REGION = "topology.kubernetes.io/region"
_ZONE = "topology.kubernetes.io/zone"
_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
# Its value is the cloud's word for how the price is set; the others only tell spot from the rest.
_STRATEGY = "node.alibabacloud.com/spot-strategy"
_PRICES: Mapping[str, Mapping[str, PriceClass]] = {
    _STRATEGY: {
        "NoSpot": PriceClass.ON_DEMAND,
        "SpotAsPriceGo": PriceClass.SPOT,
        "SpotWithPriceLimit": PriceClass.SPOT,
    },
    "karpenter.sh/capacity-type": {
        "spot": PriceClass.SPOT,
        "on-demand": PriceClass.ON_DEMAND,
        "reserved": PriceClass.ON_DEMAND,
    },
    "eks.amazonaws.com/capacityType": {"SPOT": PriceClass.SPOT, "ON_DEMAND": PriceClass.ON_DEMAND},
    "cloud.google.com/gke-spot": {"true": PriceClass.SPOT},
    "cloud.google.com/gke-preemptible": {"true": PriceClass.SPOT},
    "kubernetes.azure.com/scalesetpriority": {"spot": PriceClass.SPOT, "regular": PriceClass.ON_DEMAND},
}
# Characters of a label's value that Kubernetes allows.
_MAX_VALUE = 63


def describe(labels: Mapping[str, str]) -> NodeIdentity:
    """Returns the machine without its uid; what the labels do not tell is unknown."""
    found = [_PRICES[name].get(labels.get(name, ""), PriceClass.UNKNOWN) for name in _PRICES]
    return NodeIdentity(
        uid="",
        region=labels.get(_REGION, "")[:_MAX_VALUE],
        zone=labels.get(_ZONE, "")[:_MAX_VALUE],
        instance_type=labels.get(_INSTANCE_TYPE, "")[:_MAX_VALUE],
        price_class=next((price for price in found if price is not PriceClass.UNKNOWN), PriceClass.UNKNOWN),
        spot_strategy=labels.get(_STRATEGY, "")[:_MAX_VALUE],
    )
