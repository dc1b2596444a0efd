"""What the labels of a Node tell about its machine."""

import pytest

from servicekit.spot import LabelledMachine, read_labels

STRATEGY = "node.alibabacloud.com/spot-strategy"


@pytest.mark.parametrize(
    ("label", "value", "is_spot"),
    [
        (STRATEGY, "NoSpot", False),
        (STRATEGY, "SpotAsPriceGo", True),
        (STRATEGY, "SpotWithPriceLimit", True),
        (STRATEGY, "Barter", None),
        ("karpenter.sh/capacity-type", "spot", True),
        ("karpenter.sh/capacity-type", "on-demand", False),
        ("karpenter.sh/capacity-type", "reserved", False),
        ("eks.amazonaws.com/capacityType", "SPOT", True),
        ("eks.amazonaws.com/capacityType", "ON_DEMAND", False),
        ("cloud.google.com/gke-spot", "true", True),
        ("cloud.google.com/gke-spot", "false", None),
        ("cloud.google.com/gke-preemptible", "true", True),
        ("cloud.google.com/gke-provisioning", "spot", True),
        ("cloud.google.com/gke-provisioning", "preemptible", True),
        ("cloud.google.com/gke-provisioning", "standard", False),
        ("kubernetes.azure.com/scalesetpriority", "spot", True),
        ("kubernetes.azure.com/scalesetpriority", "regular", False),
        ("example.com/spot", "true", None),
    ],
)
def test_clouds_and_provisioners_say_whether_it_is_spot(label: str, value: str, is_spot: bool | None) -> None:  # noqa: FBT001 - a column of the table
    """A value that no cloud documents tells nothing."""
    assert read_labels({label: value}).is_spot is is_spot


def test_the_usual_labels_say_where_and_what_it_is() -> None:
    labels = {
        "topology.kubernetes.io/region": "cn-beijing",
        "topology.kubernetes.io/zone": "cn-beijing-h",
        "node.kubernetes.io/instance-type": "ecs.gn7i",
        STRATEGY: "SpotAsPriceGo",
        "team": "speech",
    }
    assert read_labels(labels) == LabelledMachine("cn-beijing", "cn-beijing-h", "ecs.gn7i", True, "SpotAsPriceGo")  # noqa: FBT003 - is_spot
    assert read_labels({}) == LabelledMachine("", "", "", None, "")


def test_a_value_is_no_longer_than_kubernetes_allows() -> None:
    assert read_labels({"topology.kubernetes.io/zone": "z" * 900}).zone == "z" * 63
