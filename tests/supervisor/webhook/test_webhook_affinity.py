"""New pods avoid nodes that will be reclaimed."""

from dataclasses import replace
from typing import Any

import pytest

from supervisor.webhook.mutation import AvoidedNodes
from tests.supervisor.webhook.webhook_pods import GIFTS, Manifest, allows, outcome, patched, pod, terms

NOTICED = replace(GIFTS, avoid=AvoidedNodes(["n1", "n2"]))
_ZONE = {"key": "zone", "operator": "In", "values": ["a"]}
_GPU = {"key": "gpu", "operator": "Exists"}


def required(*each: Manifest) -> Manifest:
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(each)}}}


def free(made: Manifest, **labels: str) -> list[str]:
    """The nodes that it may be bound to, of three that all have those labels."""
    return [node for node in ("n1", "n2", "n3") if allows(terms(made), node, labels)]


_PREFERENCE = {
    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {"matchExpressions": [_GPU]}}]
}


@pytest.mark.parametrize(
    "affinity",
    [None, {}, {"podAntiAffinity": {}}, {"nodeAffinity": {}}, {"nodeAffinity": _PREFERENCE}],
)
def test_a_pod_that_may_run_anywhere_keeps_off_noticed_nodes(affinity: Manifest | None) -> None:
    made = pod() if affinity is None else pod(affinity=affinity)
    after = patched(made, NOTICED)
    assert free(after) == ["n3"]
    assert after["spec"]["affinity"].keys() >= (affinity or {}).keys()


def test_a_node_has_to_be_left_out_of_every_term() -> None:
    made = pod(affinity=required({"matchExpressions": [_ZONE]}, {"matchExpressions": [_GPU]}))
    after = patched(made, NOTICED)
    assert free(after, zone="a") == free(after, gpu="yes") == ["n3"]
    assert free(after, zone="b") == []


def test_what_names_fields_already_is_added_to() -> None:
    made = pod(affinity=required({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n3"]}]}))
    assert free(patched(made, NOTICED)) == []


def test_a_term_that_nobody_fulfils_stays_that() -> None:
    """With a requirement in it, an empty one would let the pod run on all other nodes."""
    made = pod(affinity=required({}, {"matchExpressions": [_ZONE]}))
    assert free(patched(made, NOTICED), zone="b") == []


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeName": "n1"},
        {"nodeSelector": {"kubernetes.io/hostname": "n1"}},
        {"affinity": required({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]})},
        {
            "affinity": required(
                {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]}
            )
        },
    ],
    ids=["bound", "selector", "field", "label"],
)
def test_a_pod_for_a_certain_node_can_still_run_there(spec: dict[str, Any]) -> None:
    """Else it would never run at all, as that of a DaemonSet."""
    made = pod(**spec)
    assert patched(made, NOTICED)["spec"].get("affinity") == spec.get("affinity")


def test_a_daemon_is_for_every_node() -> None:
    made = pod()
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "u", "controller": True}
    made["metadata"]["ownerReferences"] = [owner]
    assert "affinity" not in patched(made, NOTICED)["spec"]


def test_without_notices_nothing_is_said_of_nodes() -> None:
    assert "affinity" not in patched(pod())["spec"]


def test_thousands_of_notices_are_not_written_into_every_pod() -> None:
    """The first ones are, which go last; all terms together name a hundred, and a second pass no more."""
    many = replace(GIFTS, avoid=AvoidedNodes([f"n{number}" for number in range(5000)]))
    one = patched(pod(), many)
    assert [len(term["matchFields"]) for term in terms(one) or ()] == [100]
    assert not allows(terms(one), "n99", {})
    assert allows(terms(one), "n100", {})
    two = patched(pod(affinity=required({"matchExpressions": [_ZONE]}, {"matchExpressions": [_GPU]})), many)
    assert [len(term["matchFields"]) for term in terms(two) or ()] == [50, 50]
    assert outcome(one, many).patch == outcome(two, many).patch == ()


def preferred(made: Manifest) -> list[Manifest]:
    node = (made["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    return list(node.get("preferredDuringSchedulingIgnoredDuringExecution", []))


def avoided_if_possible(made: Manifest) -> list[str]:
    """The nodes that do not fulfil the last of the pod's preferences, of three."""
    return [node for node in ("n1", "n2", "n3") if not allows([preferred(made)[-1]["preference"]], node, {})]


@pytest.mark.parametrize(
    "affinity",
    [None, {}, {"podAntiAffinity": {}}, {"nodeAffinity": {}}, {"nodeAffinity": _PREFERENCE}, required({}), required()],
)
def test_a_pod_prefers_other_nodes_to_those_with_a_hint(affinity: Manifest | None) -> None:
    """What the job prefers itself stays, and usually counts for more: weights go up to 100."""
    made = pod() if affinity is None else pod(affinity=affinity)
    after = patched(made, replace(GIFTS, avoid=AvoidedNodes(hinted=["n2"])))
    assert avoided_if_possible(after) == ["n2"]
    assert preferred(after)[-1]["weight"] == 10
    assert preferred(after)[:-1] == preferred(made)
    assert terms(after) == terms(made)


def test_noticed_nodes_are_excluded_and_hinted_ones_only_avoided() -> None:
    after = patched(pod(), replace(GIFTS, avoid=AvoidedNodes(["n1"], ["n2"])))
    assert free(after) == ["n2", "n3"]
    assert avoided_if_possible(after) == ["n2"]


def test_hints_take_the_room_that_notices_leave() -> None:
    """A pod names a hundred nodes at most, and a second pass no more."""
    hinted = [f"h{number}" for number in range(200)]
    for noticed, room in ((30, 70), (100, 0), (500, 0)):
        many = replace(GIFTS, avoid=AvoidedNodes([f"n{number}" for number in range(noticed)], hinted))
        made = patched(pod(), many)
        assert sum(len(each["preference"]["matchFields"]) for each in preferred(made)) == room
        assert not outcome(made, many).patch


def test_a_pod_for_a_certain_node_prefers_no_other() -> None:
    made = pod(nodeName="n1")
    assert "affinity" not in patched(made, replace(GIFTS, avoid=AvoidedNodes(hinted=["n1"])))["spec"]
