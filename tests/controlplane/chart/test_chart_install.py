from typing import Any

import pytest

from tests.chart.chart_rendering import CHART, NAMESPACE, RELEASE, RenderingRefused
from tests.controlplane.agent.agent_on_cluster import RULES as AGENT_RULES
from tests.controlplane.chart.chart_cluster import LINUX, Installation, rights
from tests.testkit.controlplane.api import client
from tests.testkit.controlplane.installed import OWN_RULES, RULES
from tests.testkit.waiting import until

_AGENT = "elastic-job-supervisor-agent"
_COMPONENT = "app.kubernetes.io/component"
_HERE = f"/api/v1/namespaces/{NAMESPACE}"


async def test_everything_is_admitted_and_comes_up(cluster_with_helm: Installation) -> None:
    """Two supervisors on two nodes, an agent on each but the virtual one; the API server warns of nothing."""
    virtual = await cluster_with_helm.nodes.node("virtual", labels={**LINUX, "type": "virtual-kubelet"})
    taint = {"key": "virtual-kubelet.io/provider", "value": "some", "effect": "NoSchedule"}
    await cluster_with_helm.api.patch(f"/api/v1/nodes/{virtual}", {"spec": {"taints": [taint]}})
    said = await cluster_with_helm.install()
    assert "Warning" not in said
    assert "kubectl get supervisedjobs" in said
    pods = (await cluster_with_helm.api.get(f"{_HERE}/pods"))["items"]
    where = sorted((each["metadata"]["labels"][_COMPONENT], each["spec"]["nodeName"]) for each in pods)
    real = sorted({pod["spec"]["nodeName"] for pod in pods})
    assert len(real) == 2
    assert virtual not in real
    assert where == [("agent", node) for node in real] + [("supervisor", node) for node in real]


async def test_the_service_finds_the_pod_that_leads(cluster_with_helm: Installation) -> None:
    """The label that a leader sets on its pod, and the ports of that pod."""
    await cluster_with_helm.install()
    selected = await cluster_with_helm.api.get(f"{_HERE}/pods", labelSelector=f"{_COMPONENT}=supervisor")
    leader = selected["items"][0]
    assert await _endpoints(cluster_with_helm) == {}
    label = {"metadata": {"labels": {"job-supervisor.kube-ai.io/leader": "true"}}}
    await cluster_with_helm.api.patch(f"{_HERE}/pods/{leader['metadata']['name']}", label)
    found = await until(lambda: _endpoints(cluster_with_helm), "the Service has an endpoint")
    assert found == {leader["metadata"]["name"]: {"grpc": 8470, "https": 8471}}


async def test_both_accounts_may_do_just_what_is_documented(cluster_with_helm: Installation) -> None:
    await cluster_with_helm.install()
    anybody = await _may(cluster_with_helm, "default")
    assert await _may(cluster_with_helm, _AGENT) - anybody == rights(AGENT_RULES)
    documented = rights([*RULES, *OWN_RULES])
    assert await _may(cluster_with_helm, RELEASE) - anybody == documented - anybody


async def test_a_second_release_is_refused(cluster_with_helm: Installation) -> None:
    """Two supervisors would decide about the same jobs."""
    await cluster_with_helm.install()
    for values in ({}, {"fullnameOverride": "another"}):
        with pytest.raises(
            RenderingRefused, match=f"does not belong to this release [(]it is of {NAMESPACE}/{RELEASE}[)]"
        ):
            await cluster_with_helm.helm("install", "another", str(CHART), values=values)


async def _endpoints(present: Installation) -> dict[str, dict[str, int]]:
    """The ports of the pods behind the Service, by their names."""
    slices = await present.api.get(
        f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices",
        labelSelector=f"kubernetes.io/service-name={RELEASE}",
    )
    return {
        endpoint["targetRef"]["name"]: {port["name"]: port["port"] for port in each["ports"]}
        for each in slices["items"]
        for endpoint in each["endpoints"] or []
    }


async def _may(present: Installation, account: str) -> set[tuple[str, str, str, str]]:
    token = await present.api.create(f"{_HERE}/serviceaccounts/{account}/token", {"spec": {"expirationSeconds": 600}})
    async with client(present.plane.cluster, token["status"]["token"]) as speaks:
        answer: Any = await speaks.create(
            "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", {"spec": {"namespace": NAMESPACE}}
        )
    assert not answer["status"]["incomplete"]
    return rights([*answer["status"]["resourceRules"], *answer["status"]["nonResourceRules"]])
