import json
from typing import Any

import msgspec
import pytest

from servicekit.kubernetes.objects import ObjectKey, Owner
from supervisor.cluster.objects import Pod, PodPhase, pod_or_outline, read_node, read_pod
from supervisor.cluster.podspec import PodSpec, thousandths
from supervisor.domain.capacity import Demand, Effect, LabelOperator, LabelRequirement, Taint, Toleration

METADATA = {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7"}


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("4", 4_000),
        ("500m", 500),
        ("0.5", 500),
        ("16Gi", 16 * 2**30 * 1000),
        ("1e3", 1_000_000),
        ("2E", 2 * 10**21),
        ("1k", 1_000_000),
        ("1n", 1),
        ("-1", -1_000),
    ],
)
def test_amounts_are_read_as_kubernetes_writes_them(text: str, amount: int) -> None:
    assert thousandths(text) == amount


@pytest.mark.parametrize("text", ["", "m", "Gi", "4 Gi", "NaN", "inf", "1e", "0x4", "9" * 41, "1e999999999"])
def test_what_is_no_amount_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no amount"):
        thousandths(text)


def _spec(**fields: Any) -> PodSpec:
    return msgspec.convert(fields, PodSpec)


def _asking(requests: dict[str, str], **fields: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": requests}, **fields}


def test_a_pod_takes_its_containers_together_or_the_largest_before_them() -> None:
    """As the scheduler reckons: a sidecar counts for what comes after it and for the containers."""
    spec = _spec(
        containers=[_asking({"cpu": "1"}), {"resources": {"limits": {"nvidia.com/gpu": 2, "cpu": "1"}}}],
        initContainers=[
            _asking({"cpu": "4", "memory": "1"}),
            _asking({"cpu": "500m"}, restartPolicy="Always"),
            _asking({"memory": "3", "cpu": "1"}),
        ],
        overhead={"cpu": "100m"},
    )
    assert spec.requests() == {"cpu": 4_100, "memory": 3_000, "nvidia.com/gpu": 2_000}


def test_a_demand_is_all_that_the_scheduler_looks_at() -> None:
    """Selector, tolerations, what its nodes must have, and whether two of them may share one."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    expression = {"key": "zone", "operator": "In", "values": ["a", "b"]}
    field = {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}
    terms = [{"matchExpressions": [expression]}, {"matchFields": [field]}]
    spec = _spec(
        nodeSelector={"gpu": "yes"},
        tolerations=[{"operator": "Exists"}, {"key": "spot", "value": "true", "effect": "NoSchedule"}],
        affinity={
            "nodeAffinity": {required: {"nodeSelectorTerms": terms}},
            "podAntiAffinity": {required: [{"topologyKey": "kubernetes.io/hostname"}]},
        },
    )
    assert spec.demand() == Demand(
        selector={"gpu": "yes"},
        tolerations=(Toleration(exists=True), Toleration(key="spot", value="true", effect=Effect.NO_SCHEDULE)),
        affinity=(
            (LabelRequirement(key="zone", operator=LabelOperator.IN, values=frozenset({"a", "b"})),),
            (LabelRequirement(key="metadata.name", operator=LabelOperator.NOT_IN, values=frozenset({"n1"})),),
        ),
        apart=True,
    )
    assert _spec().demand() == Demand()


def _pod(**changes: Any) -> Pod:
    return read_pod(json.dumps({"metadata": METADATA, **changes}).encode(), frozenset({"kept"}))


def test_of_a_pod_only_what_is_asked_for_is_kept() -> None:
    """Those labels that somebody needs, our own annotations, its controller, and conditions that say something."""
    owners = [
        {"kind": "Other", "name": "x", "uid": "1"},
        {
            "kind": "TrainingJob",
            "name": "j",
            "uid": "2",
            "apiVersion": "kai.alibabacloud.com/v1alpha1",
            "controller": True,
        },
    ]
    annotations = {"job-supervisor.kube-ai.io/spot-instance": "true", "other": "1"}
    metadata = {**METADATA, "labels": {"kept": "1", "lost": "2"}, "annotations": annotations, "ownerReferences": owners}
    conditions = [{"type": "Ready", "status": "True"}, {"type": "DisruptionTarget", "status": "True", "reason": "R"}]
    volume = {
        "downwardAPI": {"items": [{"fieldRef": {"fieldPath": f"metadata.annotations['{next(iter(annotations))}']"}}]}
    }
    pod = _pod(
        metadata=metadata,
        spec={"nodeName": "n1", "volumes": [volume, {"emptyDir": {}}], "serviceAccountName": "sa"},
        status={"phase": "Running", "podIP": "10.0.0.1", "conditions": conditions},
    )
    assert pod.key == ObjectKey("ns", "p")
    assert pod.owner == Owner("TrainingJob", "j", "2", "kai.alibabacloud.com/v1alpha1", controller=True)
    assert pod.labels == {"kept": "1"}
    assert pod.annotations == {"job-supervisor.kube-ai.io/spot-instance": "true"}
    assert [each.type for each in pod.conditions] == ["DisruptionTarget"]
    assert pod.shown == {"job-supervisor.kube-ai.io/spot-instance"}
    assert (pod.node, pod.ip, pod.account, pod.ready, pod.running) == ("n1", "10.0.0.1", "sa", True, True)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [([], None), ([0], 0), ([0, 3], 3), ([None, 3], None)],
    ids=["none", "done", "failed", "lives"],
)
def test_a_pod_has_an_exit_code_once_all_of_it_has_ended(codes: list[int | None], expected: int | None) -> None:
    """The first that is not 0."""
    states = [{"state": {} if code is None else {"terminated": {"exitCode": code}}} for code in codes]
    assert _pod(status={"phase": "Failed", "containerStatuses": states}).exit_code == expected


@pytest.mark.parametrize(
    ("phase", "container", "expected"),
    [
        ("Running", {}, 3),
        ("Running", {"restartPolicy": "Never"}, None),
        ("Failed", {"restartPolicy": "Never"}, 3),
    ],
    ids=["none starts again", "all start again", "over"],
)
def test_a_pod_whose_containers_start_again_in_place_has_not_ended(
    phase: str, container: dict[str, Any], expected: int | None
) -> None:
    """Between the end of its containers and their start only its phase tells whether there will be one."""
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "NotIn", "values": [0]}}
    containers = [{"name": "main", "restartPolicyRules": [rule], **container}] if container else [{"name": "main"}]
    ended = [{"state": {"terminated": {"exitCode": 3}}}]
    pod = _pod(
        spec={"restartPolicy": "Never", "containers": containers}, status={"phase": phase, "containerStatuses": ended}
    )
    assert pod.exit_code == expected


@pytest.mark.parametrize(
    ("restarts", "condition", "phase"),
    [
        (1, "AllContainersRestarting", PodPhase.RUNNING),
        (0, "AllContainersRestarting", PodPhase.PENDING),
        (1, "Ready", PodPhase.PENDING),
    ],
    ids=["again", "the first time", "one container alone"],
)
def test_a_pod_that_is_restarted_in_place_still_runs(restarts: int, condition: str, phase: PodPhase) -> None:
    """Its kubelet calls it Pending until its init containers are done, and the condition is no longer true then."""
    status = {
        "phase": "Pending",
        "conditions": [{"type": condition, "status": "False"}],
        "containerStatuses": [{"state": {"waiting": {}}, "restartCount": restarts}],
    }
    pod = _pod(status=status)
    assert pod.phase is phase
    assert pod.conditions == ()


def test_what_is_not_there_or_null_is_empty() -> None:
    """A pod that was just made has no status, and lists may be null."""
    pod = _pod(spec={"volumes": None, "tolerations": None, "initContainers": None}, status={"conditions": None})
    assert (pod.phase, pod.owner, pod.requests, pod.conditions) == (PodPhase.UNKNOWN, None, {}, ())


def test_a_node_says_what_it_has_and_who_is_kept_off() -> None:
    node = read_node(
        json.dumps(
            {
                "metadata": {**METADATA, "labels": {"zone": "a"}},
                "spec": {
                    "unschedulable": True,
                    "taints": [{"key": "k", "effect": "NoExecute"}],
                    "providerID": "cn.i-1",
                },
                "status": {
                    "capacity": {"cpu": "8"},
                    "allocatable": {"cpu": "7500m", "nvidia.com/gpu": "8"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
        ).encode()
    )
    assert node.allocatable == {"cpu": 7_500, "nvidia.com/gpu": 8_000}
    assert node.taints == (Taint(key="k", effect=Effect.NO_EXECUTE),)
    assert (node.cordoned, node.open, node.labels, node.provider_id) == (True, False, {"zone": "a"}, "cn.i-1")
    assert [(each.type, each.status) for each in node.conditions] == [("Ready", "True")]


@pytest.mark.parametrize(
    ("metadata", "spec", "host"),
    [
        ({"generateName": "j-1-"}, {"hostname": "j-1"}, "j-1"),
        ({"generateName": "j-1-"}, {}, "p"),
        ({}, {"hostname": "of-all"}, "p"),
    ],
    ids=["indexed", "nameless", "named"],
)
@pytest.mark.parametrize("containers", [[], "none"], ids=["read", "unread"])
def test_a_pod_with_a_random_name_is_known_by_its_host_name(
    metadata: dict[str, str], spec: dict[str, str], host: str, containers: object
) -> None:
    """A pod that its controller has named is not: its template may give all pods of the job one host name."""
    pod = {"metadata": {**METADATA, **metadata}, "spec": {**spec, "containers": containers}}
    assert pod_or_outline(json.dumps(pod).encode(), frozenset()).host == host
