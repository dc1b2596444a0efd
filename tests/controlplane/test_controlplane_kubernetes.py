import os
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio.client import CoreV1Api
from kubernetes_asyncio.client.exceptions import ApiException
from kubernetes_asyncio.config import new_client_from_config

from tests.testkit.controlplane.api import Api, ObjectRefused, client
from tests.testkit.controlplane.binaries import ASSETS, kubernetes_version
from tests.testkit.controlplane.namespace import Namespace, fresh_namespace
from tests.testkit.controlplane.running import RunningCluster
from tests.testkit.waiting import until

_AUDIENCE = "job-supervisor.kube-ai.io"
_READ_PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}
_READ_NODES = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}


@pytest.mark.skipif(ASSETS in os.environ, reason=f"{ASSETS} may have any version")
async def test_the_api_server_answers_with_the_pinned_version(api: Api) -> None:
    assert (await api.get("/version"))["gitVersion"] == f"v{kubernetes_version()}"


async def test_a_pod_is_scheduled_to_a_node_with_gpus_and_runs(namespace: Namespace) -> None:
    """Scheduler and kwok work, and the scheduler counts GPUs: the second pod finds none left."""
    node = await namespace.node(gpus=8)
    await namespace.pod("worker-0", gpus=8)
    assert (await namespace.running("worker-0"))["spec"]["nodeName"] == node
    await namespace.pod("worker-1", gpus=8)
    await until(lambda: _unschedulable(namespace, "worker-1"), "worker-1 finds no GPUs")


async def test_an_eviction_meets_the_disruption_budget_and_then_says_so_on_the_pod(
    api: Api, namespace: Namespace
) -> None:
    """A budget answers 429; without it the pod has DisruptionTarget before it is gone."""
    await namespace.node()
    await namespace.pod("worker", labels={"job": "j"})
    version = (await namespace.running("worker"))["metadata"]["resourceVersion"]
    budget = f"/apis/policy/v1/namespaces/{namespace.name}/poddisruptionbudgets"
    await api.create(
        budget,
        {"metadata": {"name": "j"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"job": "j"}}}},
    )

    async def counted() -> bool:
        return bool((await api.get(f"{budget}/j"))["status"].get("currentHealthy"))

    await until(counted, "the budget knows its pod")
    with pytest.raises(ObjectRefused) as refused:
        await _evict(api, namespace, "worker")
    assert refused.value.status == 429
    await api.delete(f"{budget}/j")
    await until(_accepted(lambda: _evict(api, namespace, "worker")), "the eviction is accepted")
    assert await _disruption(api, namespace, "worker", version) == "EvictionByEvictionAPI"
    await namespace.gone("worker")


async def test_a_taint_that_executes_deletes_the_pods_of_its_node(api: Api, namespace: Namespace) -> None:
    node = await namespace.node()
    await namespace.pod("worker")
    version = (await namespace.running("worker"))["metadata"]["resourceVersion"]
    await api.patch(f"/api/v1/nodes/{node}", {"spec": {"taints": [{"key": "reclaimed", "effect": "NoExecute"}]}})
    assert await _disruption(api, namespace, "worker", version) == "DeletionByTaintManager"
    await namespace.gone("worker")


async def test_a_token_is_good_for_its_audience_alone(cluster: RunningCluster, api: Api, namespace: Namespace) -> None:
    """TokenReview accepts it for that audience, refuses it for another, and so does the API server for itself."""
    await namespace.account("sdk")
    token = await namespace.token("sdk", _AUDIENCE)
    accepted = await _review(api, token, _AUDIENCE)
    assert accepted["authenticated"]
    assert accepted["user"]["username"] == f"system:serviceaccount:{namespace.name}:sdk"
    assert not (await _review(api, token, "somebody-else")).get("authenticated")
    async with client(cluster, token) as stranger:
        with pytest.raises(ObjectRefused) as refused:
            await stranger.get("/api/v1/nodes")
    assert refused.value.status == 401


async def test_an_account_may_do_what_its_role_says_and_nothing_else(namespace: Namespace, tmp_path: Path) -> None:
    """A client library finds its way by the kubeconfig, with the rights of just that account."""
    await namespace.account("agent", rules=[_READ_PODS], cluster_rules=[_READ_NODES])
    await namespace.pod("worker")
    kubeconfig = await namespace.kubeconfig("agent", tmp_path / "kubeconfig")
    async with await new_client_from_config(str(kubeconfig)) as connected:
        core = CoreV1Api(connected)
        assert [pod.metadata.name for pod in (await core.list_namespaced_pod(namespace.name)).items] == ["worker"]
        await core.list_node()
        for forbidden in (core.list_namespaced_pod("default"), core.delete_namespaced_pod("worker", namespace.name)):
            with pytest.raises(ApiException, match="403"):
                await forbidden


async def test_two_namespaces_do_not_see_each_other(cluster: RunningCluster, api: Api) -> None:
    """Pods of the same name run in both, each on its own node of the same name; what goes in one stays in the other."""
    async with fresh_namespace(cluster, api) as one, fresh_namespace(cluster, api) as other:
        for namespace in (one, other):
            node = await namespace.node("gpu-1")
            await namespace.pod("worker")
            assert (await namespace.running("worker"))["spec"]["nodeName"] == node
        await api.delete(f"{one.path}/pods/worker")
        await one.gone("worker")
        await api.delete(f"/api/v1/nodes/gpu-1.{one.name}")
        assert await other.running("worker")


async def _unschedulable(namespace: Namespace, name: str) -> bool:
    pod = await namespace.get_pod(name)
    conditions = {each["type"]: each for each in pod["status"].get("conditions", [])}
    return "nvidia.com/gpu" in conditions.get("PodScheduled", {}).get("message", "")


async def _evict(api: Api, namespace: Namespace, name: str) -> Any:
    return await api.create(
        f"{namespace.path}/pods/{name}/eviction",
        {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}},
    )


def _accepted(call: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[bool]]:
    """Whether a call has got through: a budget is remembered for a moment after it is gone."""

    async def accepted() -> bool:
        try:
            await call()
        except ObjectRefused as refused:
            if refused.status != 429:
                raise
            return False
        return True

    return accepted


async def _disruption(api: Api, namespace: Namespace, name: str, version: str) -> str:
    """The reason of the condition DisruptionTarget of that pod, in the first event after that version that has it."""
    events = api.watch(f"{namespace.path}/pods", version, fieldSelector=f"metadata.name={name}", timeoutSeconds="30")
    async with aclosing(events):
        async for event in events:
            for condition in event["object"]["status"].get("conditions", []):
                if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
                    return str(condition["reason"])
    raise AssertionError(f"pod {name} never had DisruptionTarget")


async def _review(api: Api, token: str, audience: str) -> Any:
    review = await api.create(
        "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": token, "audiences": [audience]}}
    )
    return review["status"]
