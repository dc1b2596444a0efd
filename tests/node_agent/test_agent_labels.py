"""What the labels of a node tell of its machine."""

import pytest

from node_agent.labels import describe
from node_agent.sources import NodeIdentity, PriceClass

SPOT, ON_DEMAND, UNKNOWN = PriceClass.SPOT, PriceClass.ON_DEMAND, PriceClass.UNKNOWN
STRATEGY = "node.alibabacloud.com/spot-strategy"


@pytest.mark.parametrize(
    ("labels", "price"),
    [
        ({}, UNKNOWN),
        ({STRATEGY: "NoSpot"}, ON_DEMAND),
        ({STRATEGY: "SpotAsPriceGo"}, SPOT),
        ({STRATEGY: "SpotWithPriceLimit"}, SPOT),
        ({STRATEGY: "Barter"}, UNKNOWN),
        ({"karpenter.sh/capacity-type": "spot"}, SPOT),
        ({"karpenter.sh/capacity-type": "on-demand"}, ON_DEMAND),
        ({"karpenter.sh/capacity-type": "reserved"}, ON_DEMAND),
        ({"eks.amazonaws.com/capacityType": "SPOT"}, SPOT),
        ({"eks.amazonaws.com/capacityType": "ON_DEMAND"}, ON_DEMAND),
        ({"cloud.google.com/gke-spot": "true"}, SPOT),
        ({"cloud.google.com/gke-spot": "false"}, UNKNOWN),
        ({"cloud.google.com/gke-preemptible": "true"}, SPOT),
        ({"kubernetes.azure.com/scalesetpriority": "spot"}, SPOT),
        ({"kubernetes.azure.com/scalesetpriority": "regular"}, ON_DEMAND),
    ],
)
def test_the_price_class(labels: dict[str, str], price: PriceClass) -> None:
    """A value that no cloud documents tells nothing."""
    assert describe(labels).price_class is price


def test_where_the_machine_is_and_how_its_price_is_set() -> None:
    labels = {
        "topology.kubernetes.io/region": "cn-beijing",
        "topology.kubernetes.io/zone": "cn-beijing-h",
        "node.kubernetes.io/instance-type": "ecs.gn7i",
        STRATEGY: "SpotAsPriceGo",
        "team": "speech",
    }
    assert describe(labels) == NodeIdentity("", "cn-beijing", "cn-beijing-h", "ecs.gn7i", "", SPOT, "SpotAsPriceGo")


def test_a_value_is_no_longer_than_kubernetes_allows() -> None:
    assert describe({"topology.kubernetes.io/zone": "z" * 900}).zone == "z" * 63
