"""A real API server accepts the chart's Prometheus operator objects against that operator's CRDs."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from tests.chart.chart_definitions import DefinitionsUnavailable, files
from tests.chart.chart_rendering import NAMESPACE, RELEASE
from tests.controlplane.chart.chart_cluster import Installation
from tests.testkit.controlplane.api import ObjectRefused
from tests.testkit.controlplane.definitions import DEFINITIONS, until_gone
from tests.testkit.waiting import until

_OPERATED = f"/apis/monitoring.coreos.com/v1/namespaces/{NAMESPACE}"
_SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices"
_ALL = {name: {"enabled": True} for name in ("serviceMonitor", "podMonitor", "rules", "dashboards")}


@pytest.fixture(name="operated")
async def _operated(cluster_with_helm: Installation) -> AsyncIterator[Installation]:
    """A cluster where the operator's resources are known, and no operator; skipped where they cannot be had."""
    try:
        definitions = files()
    except DefinitionsUnavailable as reason:
        pytest.skip(str(reason))
    for each in definitions:
        await cluster_with_helm.api.create(DEFINITIONS, each)

    async def served() -> bool:
        with suppress(ObjectRefused):  # 404 and then 429 for as long as they are being prepared.
            for each in definitions:
                await cluster_with_helm.api.get(f"{_OPERATED}/{each['spec']['names']['plural']}")
            return True
        return False

    await until(served, "the operator's resources are served")
    yield cluster_with_helm
    await cluster_with_helm.helm("uninstall", RELEASE, "--wait")
    names = [each["metadata"]["name"] for each in definitions]
    for name in names:
        await cluster_with_helm.api.delete(f"{DEFINITIONS}/{name}")
    # Other tests of this process look at all that there is.
    await until_gone(cluster_with_helm.api, names)


async def test_everything_about_metrics_is_admitted(operated: Installation) -> None:
    """Without a warning; every replica is behind the Service for metrics, also the one that stands by."""
    said = await operated.install({"metrics": {"enabled": True, **_ALL}})
    assert "Warning" not in said
    for kind in ("servicemonitors", "podmonitors", "prometheusrules"):
        assert len((await operated.api.get(f"{_OPERATED}/{kind}"))["items"]) == 1
    found = await until(lambda: _addresses(operated), "the Service for metrics has both replicas")
    assert found == {8475: 2}


async def _addresses(present: Installation) -> dict[int, int]:
    """How many pods are behind each port; nothing as long as it is not both."""
    named = f"kubernetes.io/service-name={RELEASE}-metrics"
    slices: list[Any] = (await present.api.get(_SLICES, labelSelector=named))["items"]
    found = {port["port"]: len(each["endpoints"] or []) for each in slices for port in each["ports"] or []}
    return found if sum(found.values()) == 2 else {}
