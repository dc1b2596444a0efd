"""Reads the machine under a node from the labels that clouds and provisioners set."""

from collections.abc import Mapping

from supervisor.cluster.objects import Node
from supervisor.domain.machine import Machine, PriceClass

_ZONE = "topology.kubernetes.io/zone"
_REGION = "topology.kubernetes.io/region"
_INSTANCE_TYPE = "node.kubernetes.io/instance-type"
_ALIBABA_STRATEGY = "node.alibabacloud.com/spot-strategy"

_PRICES: Mapping[str, Mapping[str, PriceClass]] = {
    _ALIBABA_STRATEGY: {
        "NoSpot": PriceClass.ON_DEMAND,
        "SpotAsPriceGo": PriceClass.SPOT,
        "SpotWithPriceLimit": PriceClass.SPOT,
    },
    "eks.amazonaws.com/capacityType": {"SPOT": PriceClass.SPOT, "ON_DEMAND": PriceClass.ON_DEMAND},
    "cloud.google.com/gke-spot": {"true": PriceClass.SPOT},
    "cloud.google.com/gke-preemptible": {"true": PriceClass.SPOT},
    "cloud.google.com/gke-provisioning": {
        "spot": PriceClass.SPOT,
        "preemptible": PriceClass.SPOT,
        "standard": PriceClass.ON_DEMAND,
    },
    "kubernetes.azure.com/scalesetpriority": {"spot": PriceClass.SPOT, "regular": PriceClass.ON_DEMAND},
    "karpenter.sh/capacity-type": {
        "spot": PriceClass.SPOT,
        "on-demand": PriceClass.ON_DEMAND,
        "reserved": PriceClass.ON_DEMAND,
    },
}
"""The labels that tell the price class, by their values."""

_CLOUDS = {"aws": "aws", "gce": "gcp", "azure": "azure", "qcloud": "tencent"}
"""The clouds by the scheme of `spec.providerID`."""

_PREFIXES = {
    "node.alibabacloud.com/": "aliyun",
    "alibabacloud.com/": "aliyun",
    "eks.amazonaws.com/": "aws",
    "cloud.google.com/": "gcp",
    "kubernetes.azure.com/": "azure",
}
"""The clouds by the prefix of their own labels."""


def machine_of(node: Node) -> Machine:
    """The machine under a node, as far as its labels tell."""
    labels = node.labels
    prices = (values.get(labels[label]) for label, values in _PRICES.items() if label in labels)
    return Machine(
        cloud=_cloud(node),
        region=labels.get(_REGION, ""),
        zone=labels.get(_ZONE, ""),
        instance_type=labels.get(_INSTANCE_TYPE, ""),
        price_class=next((price for price in prices if price is not None), PriceClass.UNKNOWN),
        spot_strategy=labels.get(_ALIBABA_STRATEGY, ""),
    )


def _cloud(node: Node) -> str:
    scheme, separator, _ = node.provider_id.partition("://")
    if separator and scheme in _CLOUDS:
        return _CLOUDS[scheme]
    names = (cloud for prefix, cloud in _PREFIXES.items() for label in node.labels if label.startswith(prefix))
    return next(names, "")
