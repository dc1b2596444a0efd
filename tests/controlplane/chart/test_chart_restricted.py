import pytest

from tests.chart.chart_rendering import NAMESPACE, RenderingRefused
from tests.controlplane.chart.chart_cluster import Installation

LEVEL = "restricted"


async def test_host_network_in_a_restricted_namespace_is_refused_in_a_sentence(cluster_with_helm: Installation) -> None:
    """With what to do; else there would be a DaemonSet without pods."""
    with pytest.raises(
        RenderingRefused, match=r"agent\.hostNetwork requires the Pod Security level privileged.*restricted"
    ):
        await cluster_with_helm.install()
    assert not (await cluster_with_helm.api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"))["items"]


async def test_without_the_hosts_network_everything_fits_a_restricted_namespace(
    cluster_with_helm: Installation,
) -> None:
    said = await cluster_with_helm.install({"agent": {"hostNetwork": False}})
    assert "Warning" not in said
    assert len((await cluster_with_helm.api.get(f"/api/v1/namespaces/{NAMESPACE}/pods"))["items"]) == 4
