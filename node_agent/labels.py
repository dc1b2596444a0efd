"""Describes the machine under the node by the node's labels. Pure."""

from collections.abc import Mapping

from node_agent.sources import NodeIdentity, PriceClass
from servicekit.node_labels import read_labels

_PRICES = {True: PriceClass.SPOT, False: PriceClass.ON_DEMAND, None: PriceClass.UNKNOWN}


def describe(labels: Mapping[str, str]) -> NodeIdentity:
    """Returns the machine without its uid; what the labels do not tell is unknown."""
    read = read_labels(labels)
    return NodeIdentity(
        uid="",
        region=read.region,
        zone=read.zone,
        instance_type=read.instance_type,
        price_class=_PRICES[read.is_spot],
        spot_strategy=read.spot_strategy,
    )
