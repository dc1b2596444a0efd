"""What the labels of a node tell of its machine."""

import pytest

from node_agent.node import machine_of
from node_agent.notices import MachinePrice, NodeIdentity

SPOT, ON_DEMAND, UNKNOWN = MachinePrice.SPOT, MachinePrice.ON_DEMAND, MachinePrice.UNKNOWN
STRATEGY = "node.alibabacloud.com/spot-strategy"


@pytest.mark.parametrize(("value", "price"), [("NoSpot", ON_DEMAND), ("SpotAsPriceGo", SPOT), ("Barter", UNKNOWN)])
def test_a_label_says_the_price(value: str, price: MachinePrice) -> None:
    assert machine_of({STRATEGY: value}).price_class is price


def test_where_the_machine_is_and_how_its_price_is_set() -> None:
    labels = {
        "topology.kubernetes.io/region": "cn-beijing",
        "topology.kubernetes.io/zone": "cn-beijing-h",
        "node.kubernetes.io/instance-type": "ecs.gn7i",
        STRATEGY: "SpotAsPriceGo",
        "team": "speech",
    }
    assert machine_of(labels) == NodeIdentity("", "cn-beijing", "cn-beijing-h", "ecs.gn7i", "", SPOT, "SpotAsPriceGo")
