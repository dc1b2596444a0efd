from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import pytest

from servicekit.bulkhead import Bulkhead
from servicekit.clock import Clock
from supervisor.domain.job import ELASTIC
from supervisor.store.kubernetes import KubernetesStore, KubernetesStoreOptions
from tests.chart.chart_rendering import RELEASE, RenderingRefused
from tests.controlplane.chart.chart_cluster import PREVIOUS_CHART, Installation
from tests.supervisor.store.store_behaviour import opened, put_job
from tests.supervisor.store.upgrade_values import EPISODES, JOBS, STOPPING, stored, without_end
from tests.testkit.waiting import until

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_GROUP = "job-supervisor.kube-ai.io"
_DEFINITION = f"{_DEFINITIONS}/supervisedjobs.{_GROUP}"
_RESOURCES = f"/apis/{_GROUP}/v1alpha1"


async def test_upgrade_rollback_and_uninstall_keep_what_is_known(cluster_with_helm: Installation) -> None:
    """From the chart of the version before, with what it stored. Definitions go with the release, resources stay."""
    before = await cluster_with_helm.objects()
    await cluster_with_helm.install(chart=PREVIOUS_CHART)
    assert not await _knows_capabilities(cluster_with_helm)
    uids = {path: await _store(cluster_with_helm, path, resource) for path, resource in _stored().items()}

    await cluster_with_helm.install()
    await until(lambda: _knows_capabilities(cluster_with_helm), "the definition is the new one")
    async with _opened(cluster_with_helm) as store:
        assert store.snapshot().notices == {notice.id: notice for notice in EPISODES}
        jobs = store.snapshot().jobs
        assert {name: without_end(job) for name, job in jobs.items()} == {
            job.name: job for job in JOBS if job.name in jobs
        }
        assert len(jobs) == sum("supervisedjobs" in path for path in uids)
        await put_job(store, replace(STOPPING, spec=replace(STOPPING.spec, max_wait_seconds=9.0)))
    [changed] = [path for path in uids if path.endswith("/trainingjob.stops")]
    spec = (await cluster_with_helm.api.get(changed))["spec"]
    assert (spec["operated"], set(spec["capabilities"])) == (True, set(ELASTIC))

    await cluster_with_helm.helm("rollback", RELEASE, "1", "--wait")
    await until(lambda: _forgets_capabilities(cluster_with_helm, changed), "the definition is the one before")
    await cluster_with_helm.install()
    assert await _knows_capabilities(cluster_with_helm)

    await cluster_with_helm.helm("uninstall", RELEASE, "--wait")
    kept = {
        f"{_DEFINITIONS}//reclaimnotices.{_GROUP}",
        f"{_DEFINITIONS}//supervisedjobs.{_GROUP}",
        # The API server's own of such definitions.
        *(f"/apis/apiregistration.k8s.io/v1/apiservices//{version}.{_GROUP}" for version in ("v1alpha1", "v1alpha2")),
        *(_listed(path) for path in uids),
    }

    async def only_that_is_left() -> bool:
        return (await cluster_with_helm.objects()) - (before - kept) == kept

    await until(only_that_is_left, "everything else is gone")
    await cluster_with_helm.install()
    assert {path: (await cluster_with_helm.api.get(path))["metadata"]["uid"] for path in uids} == uids


async def test_definitions_that_were_applied_by_hand_are_taken_over(cluster_with_helm: Installation) -> None:
    await cluster_with_helm.install()
    await cluster_with_helm.helm("uninstall", RELEASE, "--wait")
    for kind in ("reclaimnotices", "supervisedjobs"):
        stranger = {"metadata": {"labels": {"app.kubernetes.io/managed-by": None}}}
        await cluster_with_helm.api.patch(f"{_DEFINITIONS}/{kind}.job-supervisor.kube-ai.io", stranger)
    with pytest.raises(RenderingRefused, match="cannot be imported into the current release"):
        await cluster_with_helm.install()
    await cluster_with_helm.install({}, "--take-ownership")


def _stored() -> dict[str, Any]:
    """The resources that the version before stored, but for those in a namespace that this cluster does not have."""
    found = {}
    for plural in ("reclaimnotices", "supervisedjobs"):
        for each in stored(plural):
            metadata = each["metadata"]
            if metadata.get("namespace", "default") == "default":
                space = "namespaces/default/" if "namespace" in metadata else ""
                found[f"{_RESOURCES}/{space}{plural}/{metadata['name']}"] = each
    return found


def _listed(path: str) -> str:
    """The path of a resource as `Installation.objects` has it."""
    *_, plural, name = path.split("/")
    return f"{_RESOURCES}/{plural}/{'default' if '/namespaces/' in path else ''}/{name}"


async def _store(present: Installation, path: str, resource: Any) -> str:
    """Stores a resource as it was and returns its uid."""
    named = {"apiVersion": resource["apiVersion"], "kind": resource["kind"]}
    metadata = {"name": resource["metadata"]["name"]}
    await present.api.create(path.rpartition("/")[0], {**named, "metadata": metadata, "spec": resource["spec"]})
    written = await present.api.patch(f"{path}/status", {"status": resource["status"]})
    return str(written["metadata"]["uid"])


def _opened(present: Installation) -> AbstractAsyncContextManager[KubernetesStore]:
    options = KubernetesStoreOptions(kubeconfig=str(present.plane.cluster.kubeconfig), namespace="default", epoch=4)
    return opened(lambda: KubernetesStore.open(options, Clock(), Bulkhead(Clock())))


async def _knows_capabilities(present: Installation) -> bool:
    definition = await present.api.get(_DEFINITION)
    [version] = definition["spec"]["versions"]
    return "capabilities" in version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]


async def _forgets_capabilities(present: Installation, path: str) -> bool:
    """Whether the version before sees the fields of its own, and just these."""
    spec = (await present.api.get(path))["spec"]
    return "capabilities" not in spec and spec["operated"] is True
