"""The labels of a node tell what machine it is."""

from dataclasses import replace

import pytest

from servicekit.kubernetes.objects import Metadata
from supervisor.cluster.objects import Node, machine_of
from supervisor.domain.capacity import Machine, PriceClass


def _node(labels: dict[str, str], provider_id: str = "") -> Node:
    return Node(metadata=Metadata(name="n1", uid="u", resource_version="1"), labels=labels, provider_id=provider_id)


@pytest.mark.parametrize(
    ("value", "price"),
    [("spot", PriceClass.SPOT), ("standard", PriceClass.ON_DEMAND), ("something new", PriceClass.UNKNOWN)],
)
def test_a_label_says_the_price(value: str, price: PriceClass) -> None:
    assert machine_of(_node({"cloud.google.com/gke-provisioning": value})).price_class is price


def test_the_usual_labels_say_where_and_what_it_is() -> None:
    labels = {
        "topology.kubernetes.io/region": "us-east-1",
        "topology.kubernetes.io/zone": "us-east-1a",
        "node.kubernetes.io/instance-type": "p4d.24xlarge",
        "node.alibabacloud.com/spot-strategy": "SpotAsPriceGo",
    }
    assert machine_of(_node(labels)) == Machine(
        cloud="aliyun",
        region="us-east-1",
        zone="us-east-1a",
        instance_type="p4d.24xlarge",
        price_class=PriceClass.SPOT,
        spot_strategy="SpotAsPriceGo",
    )


@pytest.mark.parametrize(
    ("provider", "cloud"),
    [("aws:///us-east-1a/i-1", "aws"), ("gce://p/z/n", "gcp"), ("azure:///x", "azure"), ("kind://x", ""), ("", "")],
)
def test_the_provider_id_says_the_cloud(provider: str, cloud: str) -> None:
    assert machine_of(_node({}, provider)).cloud == cloud


def test_a_node_without_labels_is_an_unknown_machine() -> None:
    assert machine_of(_node({})) == Machine()


def test_what_an_agent_knows_comes_first() -> None:
    said = Machine(cloud="aws", zone="a", price_class=PriceClass.SPOT)
    labelled = Machine(zone="b", instance_type="p4d", price_class=PriceClass.ON_DEMAND, protected_until=9.0)
    assert said.or_else(labelled) == Machine(
        cloud="aws", zone="a", instance_type="p4d", price_class=PriceClass.SPOT, protected_until=9.0
    )
    assert Machine().or_else(labelled) == labelled
    assert said.or_else(Machine()) is said
    assert labelled.or_else(replace(labelled, zone="c")) is labelled
