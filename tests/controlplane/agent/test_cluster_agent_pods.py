"""A real agent with only its own role reports the pods of its node against a real control plane."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from reclaim.v1 import reclaim_pb2 as wire

from tests.controlplane.agent.agent_on_cluster import (
    MANAGED,
    OPTED_IN,
    Watching,
    account,
    active,
    evict,
    watching,
    withdrawn,
)
from tests.testkit.controlplane.api import Api
from tests.testkit.controlplane.namespace import GPU, Namespace
from tests.testkit.controlplane.running import RunningCluster

SPOT = "job-supervisor.kube-ai.io/spot-instance"


@pytest.fixture
async def one(cluster: RunningCluster, namespace: Namespace, tmp_path: Path) -> AsyncIterator[Watching]:
    node = await namespace.node(gpus=1)
    environ = await account(namespace, cluster, tmp_path / "account")
    async with watching(node, tmp_path, environ) as agent:
        yield agent


async def patched(api: Api, namespace: Namespace, name: str, **status: Any) -> None:
    """Say what a kubelet or a controller would say."""
    await api.patch(f"{namespace.path}/pods/{name}/status", {"status": status})


def condition(reason: str, status: str = "True", ago: int = 0) -> dict[str, str]:
    since = (datetime.now(UTC) - timedelta(seconds=ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
    text = "as a controller says"
    return {
        "type": "DisruptionTarget",
        "status": status,
        "reason": reason,
        "message": text,
        "lastTransitionTime": since,
    }


async def nothing_said(one: Watching, api: Api, namespace: Namespace, *pods: str) -> None:
    """That the agent has said nothing about these; the watch tells in order, and it does tell of a later eviction."""
    await namespace.pod("canary", annotations=OPTED_IN)
    await namespace.running("canary")
    await evict(api, namespace, "canary")
    await one.reported("canary", active)
    assert {name: one.reports(name) for name in pods} == {name: [] for name in pods}


async def test_an_eviction_is_reported(one: Watching, api: Api, namespace: Namespace) -> None:
    """By the eviction API, of either opt-in, in the API server's words; what is not opted in is nobody's business."""
    await namespace.pod("mine", annotations=OPTED_IN)
    await namespace.pod("arenas", annotations={SPOT: "true"})
    await namespace.pod("neither", annotations={MANAGED: "false"})
    for name in ("mine", "arenas", "neither"):
        uid = (await namespace.running(name))["metadata"]["uid"]
        await evict(api, namespace, name)
        if name != "neither":
            report = await one.reported(name, lambda last: last.HasField("deadline"))
            assert (report.subject.kind, report.subject.uid) == (wire.SUBJECT_KIND_POD, uid)
            assert report.subject.name == f"{namespace.name}/{name}"
            assert report.message == "DisruptionTarget: EvictionByEvictionAPI: Eviction API: evicting"
    await nothing_said(one, api, namespace, "neither")
    states = {(each.state, each.about) for each in one.states("kubernetes")}
    assert states <= {
        (wire.SOURCE_STATE_UNKNOWN, wire.SUBJECT_KIND_POD),
        (wire.SOURCE_STATE_CLEAR, wire.SUBJECT_KIND_POD),
    }


async def test_the_deadline_is_the_end_of_the_grace(
    cluster: RunningCluster, api: Api, namespace: Namespace, tmp_path: Path
) -> None:
    """On a node where nobody ends the pod before; until then it is said again to whoever has not heard it."""
    node = await namespace.node(labels={"type": "without-kubelet"})
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 600, "containers": [{"name": "main", "image": "none"}]}
    manifest = {"metadata": {"name": "worker", "annotations": OPTED_IN}, "spec": spec}
    await api.create(f"{namespace.path}/pods", manifest)
    environ = await account(namespace, cluster, tmp_path / "account")
    async with watching(node, tmp_path, environ) as one:
        await evict(api, namespace, "worker")
        report = await one.reported("worker", lambda last: last.HasField("deadline"))
        assert 540 < report.seconds_left <= 600
    # The next life of the agent.
    async with watching(node, tmp_path, environ) as one:
        again = await one.reported("worker", lambda last: last.HasField("deadline"))
        assert 480 < again.seconds_left <= 600
        assert (again.deadline, again.message) == (report.deadline, report.message)


async def test_a_preemption_is_reported(one: Watching, api: Api, namespace: Namespace) -> None:
    """By the scheduler, for a pod of higher priority that wants the same GPU."""
    await namespace.pod("victim", gpus=1, annotations=OPTED_IN)
    await namespace.running("victim")
    container = {"name": "main", "image": "none", "resources": {"limits": {GPU: "1"}}}
    selector = {"controlplane.test/namespace": namespace.name}
    spec = {"nodeSelector": selector, "priorityClassName": "system-cluster-critical", "containers": [container]}
    await api.create(f"{namespace.path}/pods", {"metadata": {"name": "important"}, "spec": spec})
    report = await one.reported("victim", lambda last: last.HasField("deadline"))
    assert report.message.startswith("DisruptionTarget: PreemptionByScheduler: ")
    await namespace.running("important")


async def test_a_noexecute_taint_is_reported(one: Watching, api: Api, namespace: Namespace) -> None:
    await namespace.pod("worker", annotations=OPTED_IN)
    node = (await namespace.running("worker"))["spec"]["nodeName"]
    taint = {"key": "reclaimed", "effect": "NoExecute"}
    await api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": [taint]}})
    report = await one.reported("worker", lambda last: last.HasField("deadline"))
    assert report.message.startswith("DisruptionTarget: DeletionByTaintManager: ")


async def test_the_pods_of_a_deleted_node_are_reported(one: Watching, api: Api, namespace: Namespace) -> None:
    """Said here as the pod garbage collector says it, who takes a minute."""
    await namespace.pod("worker", annotations=OPTED_IN)
    await namespace.running("worker")
    await patched(api, namespace, "worker", phase="Failed", conditions=[condition("DeletionByPodGC")])
    report = await one.reported("worker", active)
    assert report.message == "DisruptionTarget: DeletionByPodGC: as a controller says"


@pytest.mark.parametrize("reason", ["Evicted", "Terminated", "Preempting", "NodeShutdown"])
async def test_a_kubelets_eviction_is_reported(one: Watching, api: Api, namespace: Namespace, reason: str) -> None:
    """Pressure, shutdown, room for a critical pod: said here as kubelets say it, of whom there is none."""
    for name in ("new", "old"):
        await namespace.pod(name, annotations=OPTED_IN)
        await namespace.running(name)
    await patched(api, namespace, "new", conditions=[condition("TerminationByKubelet")])
    report = await one.reported("new", active)
    assert report.message == "DisruptionTarget: TerminationByKubelet: as a controller says"
    await patched(api, namespace, "old", phase="Failed", reason=reason, message="why")
    report = await one.reported("old", active)
    assert report.message == f"Failed: {reason}: why"


async def test_a_preemption_that_does_not_happen_is_withdrawn(one: Watching, api: Api, namespace: Namespace) -> None:
    """The disruption controller takes the condition back two minutes later, which are nearly over here."""
    await namespace.pod("worker", annotations=OPTED_IN)
    await namespace.running("worker")
    await patched(api, namespace, "worker", conditions=[condition("PreemptionByScheduler", ago=110)])
    await one.reported("worker", withdrawn)
    report = one.reports("worker")[0]
    assert active(report)
    assert not report.HasField("seconds_left")


async def test_completion_is_no_reclaim(one: Watching, api: Api, namespace: Namespace) -> None:
    for name, phase in (("good", "Succeeded"), ("bad", "Failed")):
        await namespace.pod(name, annotations=OPTED_IN)
        await namespace.running(name)
        await patched(api, namespace, name, phase=phase)
    await nothing_said(one, api, namespace, "good", "bad")


async def test_a_plain_deletion_is_no_reclaim(one: Watching, api: Api, namespace: Namespace) -> None:
    """A user's, a scale-in's, and that of the job that the pods belong to: all ask for just that."""
    maps = f"{namespace.path}/configmaps"
    owner = (await api.create(maps, {"metadata": {"name": "job"}}))["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "job", "uid": owner["uid"], "controller": True}
    await namespace.pod("users", annotations=OPTED_IN)
    await namespace.pod("jobs", annotations=OPTED_IN, ownerReferences=[reference])
    for name in ("users", "jobs"):
        await namespace.running(name)
    await api.delete(f"{namespace.path}/pods/users")
    await api.delete(f"{maps}/job")
    for name in ("users", "jobs"):
        await namespace.gone(name)
    await nothing_said(one, api, namespace, "users", "jobs")


async def test_what_happened_before_the_agent_began_is_reported(
    cluster: RunningCluster, api: Api, namespace: Namespace, tmp_path: Path
) -> None:
    """As long as it can be seen; and not what happens on other nodes."""
    node, other = await namespace.node("one"), await namespace.node("other", labels={"other": "true"})
    for name, where in (("here", node), ("there", other)):
        container = {"name": "main", "image": "none"}
        spec = {"nodeName": where, "containers": [container]}
        await api.create(f"{namespace.path}/pods", {"metadata": {"name": name, "annotations": OPTED_IN}, "spec": spec})
        await namespace.running(name)
        await patched(api, namespace, name, phase="Failed", reason="Evicted", message="low on memory")
    environ = await account(namespace, cluster, tmp_path / "account")
    async with watching(node, tmp_path, environ) as one:
        report = await one.reported("here", active)
        assert report.message == "Failed: Evicted: low on memory"
        assert one.reports("there") == []
