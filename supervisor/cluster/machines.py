"""Reads the machine under a node from the labels that clouds and provisioners set."""

from servicekit.spot import read_labels
from supervisor.cluster.objects import Node
from supervisor.domain.capacity import Machine, PriceClass

_PRICES = {True: PriceClass.SPOT, False: PriceClass.ON_DEMAND, None: PriceClass.UNKNOWN}

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
    read = read_labels(node.labels)
    return Machine(
        cloud=_cloud(node),
        region=read.region,
        zone=read.zone,
        instance_type=read.instance_type,
        price_class=_PRICES[read.is_spot],
        spot_strategy=read.spot_strategy,
    )


def _cloud(node: Node) -> str:
    scheme, separator, _ = node.provider_id.partition("://")
    if separator and scheme in _CLOUDS:
        return _CLOUDS[scheme]
    names = (cloud for prefix, cloud in _PREFIXES.items() for label in node.labels if label.startswith(prefix))
    return next(names, "")
