from pathlib import Path
from typing import Any

import pytest

from tests.chart.chart_rendering import RELEASE
from tests.controlplane.chart.chart_cluster import Installation
from tests.controlplane.chart.chart_processes import (
    HERE,
    node_agent,
    pods,
    reach,
    supervisor,
    whom_the_webhook_trusts,
)
from tests.node_agent.agent_process import probe
from tests.testkit.waiting import until

# The certificate has to have the name by which these tests reach a supervisor.
_VALUES = {"tls": {"extraNames": ["127.0.0.1"]}, "agent": {"settings": {"nodeUid": "i-1"}}}
_OPTED_IN = {"job-supervisor.kube-ai.io/spot-instance": "true"}


async def test_a_supervisor_leads_and_takes_agents_with_what_the_chart_gives_them(
    cluster_with_helm: Installation, tmp_path: Path
) -> None:
    """Under the chart's rights alone: its keys, its label on its own pod, and an agent's word acknowledged."""
    await cluster_with_helm.install(_VALUES)
    async with supervisor(cluster_with_helm, tmp_path) as leader:
        labelled = "job-supervisor.kube-ai.io/leader=true"

        async def leads() -> bool:
            items = (await cluster_with_helm.api.get(f"{HERE}/pods", labelSelector=labelled))["items"]
            return [each["metadata"]["name"] for each in items] == [leader.pod]

        await until(leads, "its pod has the label that the Service selects")
        await until(lambda: cluster_with_helm.api.get(f"{HERE}/configmaps/{RELEASE}-ca"), "it says whom to trust")
        async with node_agent(cluster_with_helm, leader, tmp_path) as agent:

            async def ready() -> bool:
                return (await probe(agent, "/readyz"))[0] == 200

            await until(ready, "the agent is acknowledged")


@pytest.mark.long
async def test_an_upgrade_and_another_installation_keep_the_authority(
    cluster_with_helm: Installation, tmp_path: Path
) -> None:
    """Pods that run trust it; also the webhook's configuration still has it after an upgrade."""
    await cluster_with_helm.install(_VALUES)
    async with supervisor(cluster_with_helm, tmp_path):
        authority = await until(lambda: whom_the_webhook_trusts(cluster_with_helm), "the webhook is known")
    keys = await _keys(cluster_with_helm)
    await cluster_with_helm.install({**_VALUES, "supervisor": {"podAnnotations": {"another": "version"}}})
    assert await whom_the_webhook_trusts(cluster_with_helm) == authority
    await cluster_with_helm.helm("uninstall", RELEASE, "--wait")
    await cluster_with_helm.install(_VALUES)
    assert await _keys(cluster_with_helm) == keys
    again = tmp_path / "again"
    again.mkdir()
    async with supervisor(cluster_with_helm, again):
        assert await until(lambda: whom_the_webhook_trusts(cluster_with_helm), "the webhook is known") == authority


async def test_the_api_server_asks_about_opted_in_pods_alone(cluster_with_helm: Installation, tmp_path: Path) -> None:
    """They are told where the supervisor is and whom to trust; others, and those of kube-system, stay as they are."""
    await cluster_with_helm.install(_VALUES)
    async with supervisor(cluster_with_helm, tmp_path) as leader:
        authority = await until(lambda: whom_the_webhook_trusts(cluster_with_helm), "the webhook is known")
        [listening] = leader.said("webhook.listening")
        await reach(cluster_with_helm, listening["address"])

        async def shaped() -> Any:
            pod = await _pod(cluster_with_helm, "default", _OPTED_IN)
            return pod["metadata"]["annotations"] if _files(pod) else None

        # The API server hears of a changed configuration a moment later.
        told = await until(shaped, "a pod is shaped")
        assert told["job-supervisor.kube-ai.io/address"] == f"https://{RELEASE}.arena-system.svc:8471"
        assert told["job-supervisor.kube-ai.io/ca"] == authority
        managed = {"job-supervisor.kube-ai.io/managed-by-job-supervisor": "true"}
        assert _files(await _pod(cluster_with_helm, "default", managed))
        assert not _files(await _pod(cluster_with_helm, "default", dict.fromkeys(managed, "false")))
        assert not _files(await _pod(cluster_with_helm, "default", {}))
        assert not _files(await _pod(cluster_with_helm, "kube-system", _OPTED_IN))
    assert not _files(await _pod(cluster_with_helm, "default", _OPTED_IN))


async def test_pods_are_made_while_no_supervisor_runs(cluster_with_helm: Installation) -> None:
    await cluster_with_helm.install()
    assert not _files(await _pod(cluster_with_helm, "default", _OPTED_IN))
    assert len(await pods(cluster_with_helm, "supervisor")) == 2


async def _pod(present: Installation, namespace: str, annotations: dict[str, str]) -> Any:
    manifest = {
        "metadata": {"generateName": "pod-", "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": "none"}], "schedulingGates": [{"name": "test/never"}]},
    }
    return await present.api.create(f"/api/v1/namespaces/{namespace}/pods", manifest)


async def _keys(present: Installation) -> tuple[str, str]:
    secret = await present.api.get(f"{HERE}/secrets/{RELEASE}-keys")
    return secret["metadata"]["uid"], secret["data"]["ca.crt"]


def _files(pod: Any) -> bool:
    return "job-supervisor" in {volume["name"] for volume in pod["spec"].get("volumes", [])}
