"""What the labels of a node tell of its machine."""

import pytest

from node_agent.labels import describe
from node_agent.sources import NodeIdentity, PriceClass

SPOT, ON_DEMAND, UNKNOWN = PriceClass.SPOT, PriceClass.ON_DEMAND, PriceClass.UNKNOWN
STRATEGY = "node.alibabacloud.com/spot-strategy"


@pytest.mark.parametrize(("value", "price"), [("NoSpot", ON_DEMAND), ("SpotAsPriceGo", SPOT), ("Barter", UNKNOWN)])
def test_a_label_says_the_price(value: str, price: PriceClass) -> None:
    assert describe({STRATEGY: value}).price_class is price


def test_where_the_machine_is_and_how_its_price_is_set() -> None:
    labels = {
        "topology.kubernetes.io/region": "cn-beijing",
        "topology.kubernetes.io/zone": "cn-beijing-h",
        "node.kubernetes.io/instance-type": "ecs.gn7i",
        STRATEGY: "SpotAsPriceGo",
        "team": "speech",
    }
    assert describe(labels) == NodeIdentity("", "cn-beijing", "cn-beijing-h", "ecs.gn7i", "", SPOT, "SpotAsPriceGo")
