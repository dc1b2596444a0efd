"""The chart installs beside Arena's artifacts, which bring a supervisor of the same name by default."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.chart import chart_page as page
from tests.chart.chart_rendering import NAMESPACE, RELEASE, RenderingRefused
from tests.controlplane.chart.chart_cluster import Installation
from tests.testkit.controlplane.api import Manifest

_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_ACCOUNT = {"kind": "ServiceAccount", "name": RELEASE, "namespace": NAMESPACE}
_ROLE = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": RELEASE}
_POD = {"serviceAccountName": RELEASE, "containers": [{"name": RELEASE, "image": "none"}]}
_APP = {"app": RELEASE}
_THEIRS: dict[str, Manifest] = {
    f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts": {},
    f"{_RBAC}/clusterroles": {"rules": [{"apiGroups": ["*"], "resources": ["trainingjobs"], "verbs": ["*"]}]},
    f"{_RBAC}/clusterrolebindings": {"roleRef": _ROLE, "subjects": [_ACCOUNT]},
    f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments": {
        "spec": {"selector": {"matchLabels": _APP}, "template": {"metadata": {"labels": _APP}, "spec": _POD}}
    },
}
_OWNED = {"meta.helm.sh/release-name": "arena-artifacts", "meta.helm.sh/release-namespace": NAMESPACE}


@asynccontextmanager
async def _arena(present: Installation, annotations: dict[str, str], desk: Path) -> AsyncIterator[None]:
    """Its component, as helm or `kubectl apply` has made it; turned off at the end, as the page has it."""
    metadata = {"name": RELEASE, "annotations": annotations, "labels": {"app.kubernetes.io/managed-by": "Helm"}}
    for path, rest in _THEIRS.items():
        await present.api.create(path, {"metadata": metadata, **rest})
    try:
        yield
    finally:
        for each in page.commands(page.ARENA):
            await asyncio.to_thread(page.follow, each, present.plane.cluster, desk)


async def _versions(present: Installation) -> list[Any]:
    found = [await present.api.get(f"{path}/{RELEASE}") for path in _THEIRS]
    return [(each["metadata"]["uid"], each.get("rules"), each.get("spec", {}).get("selector")) for each in found]


@pytest.mark.parametrize(
    ("annotations", "whose"), [(_OWNED, f"it is of {NAMESPACE}/arena-artifacts"), ({}, "it has no release")]
)
async def test_it_is_refused_beside_arenas_own_and_installed_after_it(
    cluster_with_helm: Installation, annotations: dict[str, str], whose: str, tmp_path: Path
) -> None:
    """Under whatever name, also where helm is told to take over: nothing of theirs is touched, no release is left."""
    async with _arena(cluster_with_helm, annotations, page.desk(tmp_path)):
        before = await _versions(cluster_with_helm)
        for values, flags in (({}, []), ({}, ["--take-ownership"]), ({"fullnameOverride": "another"}, [])):
            with pytest.raises(
                RenderingRefused, match=f"the ClusterRole {RELEASE} does not belong to this release [(]{whose}[)]"
            ):
                await cluster_with_helm.install(values, *flags)
        assert await _versions(cluster_with_helm) == before
        assert RELEASE not in await cluster_with_helm.helm("list", "--all", "--short")
    await cluster_with_helm.install()
    await cluster_with_helm.install()
